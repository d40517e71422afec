/*
 * Emitter: appends instructions to a segment, priced for one device.
 */
#pragma once

#include "hw/timing.h"
#include "workloads/lower/price.h"
#include "workloads/lower/program.h"
#include "workloads/plan/plan.h"

typedef struct Emitter {
    const Plan *plan;
    const Device *device;
    Segment *segment;
    PriceList *prices; /* owned by the lowering */
    Phase phase;
    gboolean is_backward;   /* kernels are issued by the autograd engine */
    gboolean is_selective;  /* operators run under selective checkpointing */
} Emitter;

/* Appends an empty instruction of a kind in the current phase. */
Instr *emit(Emitter *emitter, InstrKind kind, StreamId stream);

/* stream: whose pool of the caching allocator the buffer comes from. */
void emit_alloc(Emitter *emitter, StreamId stream, Place buffer, int64_t bytes, MemTag tag);
/* Another name of memory that is counted elsewhere: takes nothing. */
void emit_view(Emitter *emitter, Place buffer, int64_t bytes, MemTag tag);
void emit_free(Emitter *emitter, Place buffer);
void emit_move(Emitter *emitter, Place from, Place to);
void emit_record(Emitter *emitter, StreamId stream, Place token);
void emit_wait(Emitter *emitter, StreamId stream, Place token);

/* Host work alone. */
void emit_host(Emitter *emitter, SimTime ns);

/* One kernel or several equal ones; host time by the emitter's mode. */
void emit_work(Emitter *emitter, StreamId stream, const Work *work, int label, int op);

/* The kernels of an operator's pass, and its host synchronisations after them. */
void emit_cost(Emitter *emitter, StreamId stream, const OpCost *cost, int label, int op);

/* A stream kernel of given bytes (label in reports). */
void emit_bytes(Emitter *emitter, StreamId stream, WorkLaw law, int64_t read_bytes, int64_t write_bytes, int n_launches, int label);

/*
 * A collective that takes price->ns once all members have come, and loads the network meanwhile unless the plan has each
 * alone there; its buffers are added by emit_operand.
 */
Instr *emit_collective(Emitter *emitter, StreamId stream, CollKind coll, GroupKind group, int64_t bytes, const CollPrice *price);

/* Time of an all-reduce of that many bytes over all ranks; 0 with one rank. */
CollPrice emit_world_sum_price(const Plan *plan, int64_t bytes);

/* What the kernels just emitted compute; op is an operator of the graph, or the number of a parameter, or -1. */
Instr *emit_value(Emitter *emitter, StreamId stream, ValueAction action, int op);

/* One more buffer of the last VALUE or COLLECTIVE. */
void emit_operand(Emitter *emitter, Place place);
