/*
 * Walk: the state of one pass over the operators of a graph, shared by the forward and the backward pass.
 *
 * Frame layout: tensors, auxiliary tensors (OP_AUX_MAX per operator), gradients that an operator makes of its inputs, sums
 * of such gradients with earlier ones (OP_INPUTS_MAX each per operator), gradients of parameters, workspace, cut gradient,
 * gradient of a loss of the layer (which the same operator reads at once), what exchanges bring, gradients of parameters by chunk;
 * where something moves to DDR: N_SLOTS pinned host buffers per operator, and as many in HBM for what came back.
 */
#pragma once

#include "workloads/lower/layer.h"

/* State of one pass over the operators. */
typedef struct Walk {
    const LayerPass *pass;
    const Graph *graph;
    SaveMode mode;
    gboolean in_backward;  /* of the pass as a whole: a recomputation is part of it */
    gboolean in_recompute;
    int first_op, end_op;
    OpSaved *saved;      /* by operator */
    gboolean *saves;     /* by operator: its backward will run */
    guint64 *moved;      /* by operator: slots that lie in DDR between the passes (SAVE_ALL) */
    gboolean *is_moving; /* by tensor: a copy to DDR may still read it when it dies */
    int *storage;        /* by tensor: the one whose memory it is; views share their input's */
    gint16 *uses;        /* by tensor: readers still to come */
    gint16 *refs;        /* by tensor: backward operators that will read it here, in HBM */
    gboolean *alive;     /* by tensor */
    int stop_op;             /* operator in which a recomputation stops once its tensors to keep are made, or -1 */
    gboolean source_dies_early; /* nobody keeps the dying source for backward: it dies with the forward pass */
    gboolean *under_way;        /* by operator: its rows have been sent, and nobody has waited for them yet */
    gboolean *goes_along;       /* by operator: in backward its rows are back when those of its leader are (layer_exchange_leader) */
    gboolean has_counts;        /* of all chunks: they have been exchanged in this pass */
    int *exchange_at;           /* by operator: layer_exchange_start() or layer_exchange_end(); -1 = no exchange */
    int *exchanges;             /* n_exchanges of them: the operators in the range that are one, rising */
    int n_exchanges;
    Place *grad;         /* by tensor; idx -1 = none */
    GArray *held;        /* GradHold */
} Walk;

/* How many names a gradient buffer goes by. */
typedef struct GradHold {
    Place place;
    int refs;
} GradHold;

/* Buffers of a frame by what they hold. */
gint32 frame_aux(const Graph *graph, int op, int i);
gint32 frame_grad(const Graph *graph, int op, int i);
gint32 frame_sum(const Graph *graph, int op, int i);
gint32 frame_param_grad(const Graph *graph, int param);
gint32 frame_workspace(const Graph *graph);
gint32 frame_exchange(const Graph *graph, int op);
gint32 frame_cut_grad(const Graph *graph);
gint32 frame_loss_grad(const Graph *graph);
gint32 frame_param_part(const Graph *graph, int param);

/* Whether an operator of a graph sends rows to other ranks: its scratch memory is frame_exchange. */
gboolean walk_op_exchanges(const Graph *graph, int op);

/*
 * Host time that an exchange of rows costs more where selective checkpointing looks at every operator: measured of the framework's
 * functional collectives; an exchange of one's own is one operator to it.
 */
SimTime walk_intercept_ns(const Device *device, const Op *exchange);

/* Which of a graph's exchanges that is, and how many there can be: kinds for each chunk. */
gint32 walk_exchange_slot(const Graph *graph, int op);
gint32 walk_n_exchange_slots(const Graph *graph);

/* By operator: where its exchange starts (to the experts) or is over (layer_exchange_start, layer_exchange_end), -1 = none; caller frees. */
int *walk_exchange_places(const Graph *graph);

gint32 frame_host(const Graph *graph, int op, int slot);
gint32 frame_back(const Graph *graph, int op, int slot);

/* Which input of the graph a tensor is, or -1. */
int walk_source_index(const Graph *graph, int tensor);

/* Given from outside the pass: a source of the graph, or made by an operator before the range. */
gboolean walk_is_external(const Walk *walk, int tensor);

/* Handed on to whoever follows the pass: the graph's result, or read by an operator after the range. */
gboolean walk_is_handed_on(const Walk *walk, int tensor);
OpView walk_view(const Walk *walk, int op);

/* Starts a pass: counts readers and what each backward keeps. End it with walk_clear. */
void walk_init(Walk *walk, const LayerPass *pass, SaveMode mode);
void walk_clear(Walk *walk);

/* Host time of running the pass under a checkpoint: each tensor that autograd keeps goes through a hook of it. */
void walk_emit_checkpoint(const Walk *walk);

/* Whether an operator's results stay under SAVE_SELECTED. */
gboolean walk_keeps_op(const Walk *walk, int op);

/* Whether an output of an operator is a copy of an auxiliary tensor, which is kept in its stead. */
gboolean walk_is_copied(const Walk *walk, int op, int tensor);

/* Whether a tensor outlives its last reader in a forward pass. */
gboolean walk_outlives(const Walk *walk, int tensor);

/* What the memory of an operator's result is called: part of a cache where budgets keep it. */
MemTag walk_result_tag(const Walk *walk, int op, MemTag tag);

/* Where a tensor lives, and its birth and death. */
Place walk_tensor(const Walk *walk, int tensor);
void walk_alloc_tensor(Walk *walk, int tensor);
void walk_free_tensor(Walk *walk, int tensor);

/* Kernels of a pass of an operator, with its exchange where it stands. douts: gradients of its outputs; NULL = forward. */
void walk_compute(Walk *walk, int op, OpCost *cost, const Place *douts);

/*
 * Rows on their way while others compute (layer_exchange_start, layer_exchange_end). Before operator op of a forward or backward
 * pass whose last operators are first_op and end_op - 1: what must be back is waited for, what can leave leaves. op beyond them:
 * everything is waited for.
 */
void walk_exchanges_before(Walk *walk, int op, int end_op, gboolean backward);

/* Another gradient of a tensor arrives: its rows must be back. */
void walk_end_exchange_of(Walk *walk, int tensor);

/* An operator with an exchange, for walk_compute. */
void walk_compute_exchanged(Walk *walk, int op, OpCost *cost, const Place *douts);

/* Where the rows of an exchange are: the operator's side of it and the workspace that holds them on the other side. */
typedef struct ExchangePlaces {
    Place own, arrived;
} ExchangePlaces;

/* Buffers of a pass of an operator. In an exchange the kernels see the workspace instead of what was, or will be, sent. */
void walk_emit_value(const Walk *walk, int op, gboolean backward, const Place *douts, const ExchangePlaces *exchange);

/* Losses of layers (layer-loss.c): whether an operator's result is summed over all ranks, and that sum, behind its kernels. */
gboolean walk_is_summed(const Graph *graph, int op);
void walk_sum_counts(const Walk *walk, int op);

/* A loss that the operator has made joins those of the step; the first gradient of such a loss, before its backward, or FALSE. */
void walk_add_loss(const Walk *walk, int op);
gboolean walk_start_loss_grad(Walk *walk, int op, Place *ret_grad);

/* First and last operator that reads an expert parameter; FALSE if there is none. */
gboolean walk_expert_range(const Walk *walk, int *ret_first, int *ret_last);

/* Copies what of an operator's slots goes to DDR, behind the compute stream, if any does in this pass (swap.c). */
void walk_swap_out(const Walk *walk, int op);
gboolean walk_swaps_out(const Walk *walk, int op);

/* Compute waits until what came back of an operator is there. */
void walk_swap_wait(const Walk *walk, int op);

/* Where the backward of an operator finds a slot: where it was made, or where it came back to. */
Place walk_slot(const Walk *walk, int op, int slot);

/* Runs the operators before end_op forward: the pass itself, or its recomputation. */
void walk_forward(Walk *walk, int end_op);
