/*
 * Bound: what no run of a plan's program goes below, by closed form.
 *
 * Time. Streams run their works in order and never faster than alone, so (1) between the first and the last work of a call
 * on the compute stream lies at least the longest chain through the call's instructions: works of one stream one after the
 * other, and from stream to stream by the tokens that the call itself records and waits for (dispatch, experts, combine);
 * calls follow one another on the compute stream, so their chains add up. (2) Each stream has all its works of the step to
 * do. (3) Each level of the network has all collectives to carry, whatever their stream: links carry no more than they can
 * (sim/base/link-load.h), so what collectives take of a link, part of it times duration alone, adds up. The largest of the three
 * is the bound. What a call waits for from other calls, hosts that are late, and works that slow each other down make a step
 * longer than that.
 *
 * Memory. Buffers as they were asked for, in the order of the program: an allocator's blocks are no smaller.
 *
 * Both also from the layers alone, whatever embedding, head, loss and optimizer are: kernels then run at the clock that
 * suits them best (lower/clock.h), and only buffers that calls of layers allocate are counted beside the static memory.
 *
 * And from less and less of the layers, so that one bound serves more and more plans:
 *     sharded     layers without what is recomputed and what goes to the host's memory and back
 *     once        of that the model's operators and the exchanges of experts, without what FSDP and replicas add
 * Both hold for a plan whatever is kept and recomputed, if they are of the same plan that recomputes nothing.
 */
#pragma once

#include "workloads/lower/program.h"

typedef struct Bound {
    SimTime step_ns, layers_ns, sharded_ns, once_ns; /* step_run of the program gives at least that; each at most the one before */
    int64_t peak_bytes, layers_bytes;                  /* ledger_run of the program has at least that as its peak */
    int64_t static_bytes;                              /* likewise: before the step */
} Bound;

void bound_of_program(const Program *program, Bound *ret_bound);

/* The same but for the whole step: step_ns is layers_ns, peak_bytes is layers_bytes. */
void bound_of_layers(const Program *program, Bound *ret_bound);
