/*
 * Dispatch: sends each slot's row to the rank of its expert, and brings what arrives into expert-major order.
 *
 * Two steps: an all-to-all (the rows of destination rank d are those of its experts, which are contiguous in the
 * slots), and a local reorder from order of arrival (source rank, local expert) to (local expert, source rank).
 *
 * Class contract for whoever runs it. Time: the lowering issues the all-to-all; the class prices the local kernels
 * around it and the host synchronisations. Values: the exchange happens outside; the kernel sees the received side:
 * in[0] the rows as they arrived [RECEIVED, l], in[1] their counts [ranks * local experts] by (source, local expert);
 * backward gives din[0] in order of arrival, which the caller sends back.
 */
#pragma once

#include "models/op.h"

typedef struct DispatchAttr {
    int64_t experts; /* slots of experts in the group */
    int64_t ep_size;
    gboolean padded; /* every slot sends and gets the same rows: nobody has to count */
} DispatchAttr;

typedef struct DispatchTensors {
    int rows;    /* [RECEIVED, l] by local expert (MEM_DISPATCH) */
    int arrival; /* [RECEIVED, 1] INT64: place in order of arrival of each row; what combine undoes. -1 if ep_size is 1
                  */
} DispatchTensors;

/* Adds a dispatch of x [SLOTS, l] with a router's `counts`. Without expert parallelism (graph->ep_size 1): x itself. */
DispatchTensors dispatch_add(Graph *graph, const char *name, int x, int counts, int64_t experts);

/* Whether a dispatch operator's splits are the same whatever is routed, so that no counts are exchanged. */
gboolean dispatch_is_padded(const Op *op);

/* Times that the host waits for the sizes of an exchange (of rows or tokens), once they have been exchanged. */
int dispatch_count_syncs(const Op *op);

/* The same of padded slots. */
DispatchTensors dispatch_add_padded(Graph *graph, const char *name, int x, int counts, int64_t experts);

/*
 * Cost of moving gradients between expert order and arrival order, for the backward of dispatch and of combine alike:
 * both read and write every received row once. Eager code adds into zeros (index_add), fused code gathers.
 */
void dispatch_backward_cost(const OpView *view, OpCost *ret_cost);

/*
 * Samples of dispatch and combine: router, permutation and dispatch of a rank that stands for all, so that what it sends is
 * what it receives and its counts by expert are those by (source, expert). FALSE behind the last one.
 */
gboolean dispatch_sample_add(int idx, Graph *graph, RowCounts *rows, DispatchTensors *ret_tensors);
