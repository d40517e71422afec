/*
 * Passes of one graph: forward, recomputation and backward as instructions.
 *
 * This is where activations live and die. A tensor is allocated by its producer and freed after its last reader,
 * unless an operator keeps it for its backward; then it is freed after the last backward that reads it. Gradients are
 * allocated by the operator that makes them and freed by the one that consumes them; where several meet in one tensor
 * they are added, in place if nobody else holds the sum (as autograd does). An operator whose backward has no kernel
 * hands its incoming gradient on under another name.
 *
 * A buffer is named after its place in the frame; inputs of the graph live at ARG_SOURCES + i (value, gradient), its
 * output at ARG_OUTPUT.
 */
#pragma once

#include "workloads/lower/fsdp.h"
#include "workloads/lower/retention.h"

enum { BOUNDARY_VALUE, BOUNDARY_GRAD, N_BOUNDARY };

typedef struct AllToAll {
    CollPrice dispatch, combine;            /* one exchange of rows to their experts, and back; all ranks together */
    CollPrice weights;                      /* of the weights that go along with tokens */
    CollPrice counts;                       /* the exchange of counts before it */
    CollKind dispatch_coll, combine_coll;
    int64_t bytes;         /* of the busiest rank's rows, there or back, the part kept included */
    int64_t weights_bytes; /* the same of the weights that go along with tokens */
    int64_t counts_bytes;  /* of a rank's table of counts */
} AllToAll;

/* What a pass works on; fields are borrowed. */
typedef struct LayerPass {
    Emitter *emitter;
    const Graph *graph;
    const RowCounts *rows;
    const Retention *retention; /* where results or saved tensors stay; NULL: nothing but what the mode itself keeps */
    gboolean hooks;            /* memory of what moves to DDR is free once its copy is issued */
    const FsdpGroup *group;    /* the graph's own group, or NULL when its parameters are gathered elsewhere */
    const FsdpGroup *experts;  /* nested group of the experts, or NULL */
    const FsdpGroup *next;     /* group to gather ahead in backward, or NULL */
    int next_op;               /* operator before whose backward that happens; -1 = at the start */
    gboolean free_flat;        /* flat buffers die at once (explicit prefetch) */
    gboolean reshard;
    gboolean first_micro_batch;
    gboolean source_grads[OP_INPUTS_MAX]; /* a gradient of that source exists before the pass */
    int dying_source;          /* input of the graph that no earlier layer reads, or -1; it dies in backward at the latest */
    gboolean sources_are_shared; /* later layers may read it, too (attention residuals) */
    gboolean reduce_pending;              /* a reduce buffer of an earlier group waits at ARG_LAST_REDUCE */
    gboolean own_flat;         /* the layer's own flat buffer dies at the experts' wait (implicit prefetch) */
    const AllToAll *exchanges; /* of the layer, or of each of its chunks; NULL: it has none */
    int first_op, end_op;      /* range of operators; end_op 0 = all */
    int cut_tensor;            /* tensor that operators after the range read, or -1 */
    /* Not NULL: called where rows have left and nobody waits for them yet; what follows goes into another segment. Not of a recomputation. */
    void (*next_part)(void *owner);
    void *owner;
} LayerPass;

/* Buffers of a frame for this graph; and how many more it has when something of it moves to DDR. */
int layer_frame_buffers(const Graph *graph);
int layer_tier_buffers(const Graph *graph);

/*
 * The operator before which the exchange of a dispatch starts in forward: the first behind the makers of what it reads. In
 * backward its rows are back before the operator in front of that one runs. op itself: nothing stands between.
 *
 * Of chunks, no more than two are under way in one direction: a chunk's rows leave once those of the last but one have been sent
 * back. The columns that follow tokens leave with them.
 */
int layer_exchange_start(const Graph *graph, int op);

/*
 * The operator before which the exchange of a combine is over in forward: the first that reads its rows; of chunks, by the
 * dispatch of the next but one at the latest; at once if its rows go on to DDR. In backward the exchange starts behind that operator. op + 1: it is waited for at
 * once, as all are that are not of a chunk.
 */
int layer_exchange_end(const Graph *graph, int op);

/* Whether rows leave for the experts before the operator itself allocates: chunks all do, so that they leave in order. */
gboolean layer_exchange_is_early(const Graph *graph, int op);

/* The dispatch of the tokens that an exchange goes along with, or -1. */
int layer_exchange_leader(const Graph *graph, int op);

/* Whether a pass goes on in another segment behind the exchange of an operator, where it is cut at all (LayerPass.next_part). */
gboolean layer_ends_part(const Graph *graph, int op);

/* What a buffer of the frame is, in words; caller frees. */
char *layer_buffer_name(const Graph *graph, gint32 buffer);

/* Forward pass; parameters are gathered. */
void layer_forward(const LayerPass *pass, SaveMode mode);

/*
 * Backward pass, after the forward one was run with `mode`: recomputes what it needs first. Reads the gradient at
 * ARG_OUTPUT and frees it. grads, if not NULL, receives the place of each parameter's gradient (by parameter index)
 * instead of reducing group's gradients here.
 */
void layer_backward(const LayerPass *pass, SaveMode mode, Place *grads);

/* Place of the gradient of a parameter in the frame. */
Place layer_param_grad(const Graph *graph, int param);

/*
 * Where the backward of an operator writes the gradient of its i-th parameter: there, unless a later operator (of another chunk)
 * reads the parameter, too: then apart, to be added.
 */
Place layer_op_param_grad(const Graph *graph, int op, int i);

/* Where a pass over a range leaves, or finds, the gradient of the tensor at which the graph was cut. */
Place layer_cut_grad(const Graph *graph);

/*
 * Carries out an event between passes (retention.h) on the frame of a layer whose pass that is; ops names its operators.
 * Tokens of the layer's copies are at ARG_SWAP.
 */
void layer_swap(const LayerPass *pass, SwapAction action, const guint8 *ops);

/* Place of a tensor in the frame or among the arguments. */
Place layer_tensor(const Graph *graph, int tensor);
