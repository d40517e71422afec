/*
 * Lowering of one class of ranks: what its parts share. Groups and rows are laid out in sites.c, calls are made in calls.c,
 * head and loss in head.c, the optimizer in optimizer.c, everything else in lower.c.
 */
#pragma once

#include "models/optim.h"
#include "workloads/lower/layer.h"
#include "workloads/lower/lower.h"

/* What distinguishes the segments of two layers. */
typedef struct SegmentKey {
    gint32 what; /* SegmentKind */
    gint32 kind; /* graph */
    gint32 loads; /* index of the layer's expert loads; layers of equal loads share it */
    gint32 has_last_flat, reduce_pending, dying_source, first_micro_batch, grads_mask;
    gint32 next; /* identity of the group gathered ahead, -1 = none */
    gint32 retention; /* table */
    gint32 event;     /* of a swap */
    gint32 rows; /* of a loss chunk; of the head: whether its loss runs in chunks */
    gint32 own_flat; /* of a body: the layer's own flat buffer dies in it */
} SegmentKey;

G_STATIC_ASSERT(sizeof(SegmentKey) == SEGMENT_KEY_WORDS * sizeof(gint32));

typedef enum SegmentKind {
    SEGMENT_FORWARD,
    SEGMENT_BACKWARD,
    SEGMENT_HEAD_FORWARD, /* from here on: of the head, which depends on how the loss is cut; see lowering_loss_key() */
    SEGMENT_HEAD_BACKWARD,
    SEGMENT_CHUNK_FORWARD, /* from here on: of a chunk of the loss, which sees nothing of shards */
    SEGMENT_CHUNK_BACKWARD,
    SEGMENT_SWAP, /* from here on: known to one lowering alone */
    SEGMENT_GRADS,
    SEGMENT_GRADS_FREED,
} SegmentKind;

/* Segments of this lowering by their keys. */
GHashTable *segment_table_new(void);

/* A group and where its buffers are. */
typedef struct GroupSite {
    FsdpGroup *group; /* geometry, shared by layers of a kind */
    gint32 kind;      /* identity of the geometry */
    gint32 buffer, token;
} GroupSite;

/* Buffers of a micro-batch that live from its forward to its backward pass. */
typedef struct StepSide {
    gint32 *frames;  /* [n_layers] */
    gint32 boundary; /* first boundary buffer: value and gradient of each */
    gint32 embedding_frame;
} StepSide;

typedef struct Lowering {
    const Plan *plan;
    const ModelGraph *graphs;
    const Routing *routing;
    int64_t ep_rank;
    Program *program;
    Emitter emitter;
    GHashTable *segments;  /* of this program, by their keys: for look-up alone */
    LowerCache *cache;     /* segments of other programs, or NULL */
    int scope, loss_scope, body_scope; /* in the cache */
    GroupSite root, head;  /* head.group NULL: part of the root group */
    GroupSite *layers, *experts; /* [n_layers]; experts[i].group NULL: part of the layer's group */
    RowCounts *rows;       /* [n_layers] */
    AllToAll *exchanges;   /* [n_layers][chunks] */
    gint32 *loads;         /* [n_layers] */
    StepSide sides[2];     /* of micro-batches with even and with odd numbers; the same unless two are alive at once */
    GArray *n_parts;       /* gint32: of the pass of a layer whose first segment that is; 0 = one (LayerPass.next_part) */
    gint32 losses;         /* first loss buffer: value and gradient of each chunk; the last buffers of the program */
    gint32 balance_table;  /* buffer of what balancing has counted */
    gint32 whole_stages;   /* buffers of the rounds of whole matrices (whole.h) */
    gint32 dealt;          /* buffer of the tensors that owners have updated (deal.h) */
    gint32 chunk_sums;     /* gradients summed over loss chunks */
    gint32 inputs;         /* token ids and labels: static, no buffer of the program */
    int cut;               /* first operator of the chunked part of the head, or -1 */
    RetentionPlan *retention;
    GArray *retention_numbers; /* gint32: 1 + number of a table's content in the cache, by its id; 0 = not asked yet */
    gint32 *swap_tokens; /* [n_layers]: two for each operator, or -1 */
} Lowering;

/* Everything that a micro-batch needs to know. */
typedef struct StepState {
    Lowering *lowering;
    StepSide side;
    gint32 head_frame;
    int64_t micro_batch;
    const GroupSite *last_flat;   /* group whose flat buffer is still alive (implicit prefetch) */
    const GroupSite *last_reduce; /* group whose reduce buffer is pending */
    const GroupSite *ahead;       /* group gathered ahead */
} StepState;

/* Buffers that loss chunks share, from the base in argument ARG_EXPERTS: gradient of the normed stream being summed, one
 * chunk's part of it, then a sum and its successor per parameter. */
enum { CHUNK_SUM_X, CHUNK_FULL_X, CHUNK_PARAMS };

/* Times of the exchanges of a layer whose loads are that table's: of the tokens of a chunk (from 0), or of all where there are none. */
AllToAll lowering_price_exchange(const Lowering *lowering, int table, int64_t chunk);

/* What an exchange takes in which each rank of an EP group sends each other so many rows, [source][dest] (not tokens). */
CollPrice lowering_price_rows(const Plan *plan, const int64_t *rows, int64_t row_bytes);
/* Those of a layer, one for each chunk. */
const AllToAll *lowering_layer_exchanges(const Lowering *lowering, int64_t layer);
/* Takes n buffers of the program; returns the first. */
gint32 lowering_take_buffers(Lowering *lowering, int n);
const Graph *lowering_layer_graph(const Lowering *lowering, int64_t layer);
/* Lays out groups alone. */
void lowering_place_groups(Lowering *lowering);
/* Lays out groups, frames and boundaries, and counts rows. */
void lowering_start(Lowering *lowering, gint32 *head_frame);
/* Takes the buffers of the losses. */
void lowering_take_losses(Lowering *lowering);
/* Frees what a lowering owns but its program. */
void lowering_clear(Lowering *lowering);
/* Every group, root first, then layers with their experts, then the head: the order of the parameters. */
void lowering_each_group(Lowering *lowering, void (*visit)(Lowering *lowering, const GroupSite *site, void *data), void *data);
/* What this rank's optimizer holds of a parameter. */
OptimPiece lowering_optim_piece(const Plan *plan, const GraphParam *param);
/* Whether the optimizer reads gradients wider than the stored parameters. */
gboolean lowering_grad_fp32(const Plan *plan);
/* Fills static_bytes of the program. */
void lowering_count_static(Lowering *lowering);
/* The optimizer's step, then the end of the gradients. */
void lowering_optimizer(Lowering *lowering);
/* Loss-free balancing, if the plan has it: counts of all ranks, and the biases that they move. */
void lowering_balance(Lowering *lowering);
/* Segment of a key, or -1; start_segment makes one and points the emitter at it. */
int lowering_find_segment(Lowering *lowering, const SegmentKey *key);
int lowering_start_segment(Lowering *lowering, const SegmentKey *key, const char *name, const Graph *graph);
/*
 * Emits a pass of a layer into the emitter's segment, whose key that is: from its body (body.h), which is made when it is not
 * known yet; without a cache as it is.
 */
typedef void (*PassEmitter)(const LayerPass *pass, const SegmentKey *key);
void lowering_emit_pass(Lowering *lowering, const SegmentKey *key, const LayerPass *pass, PassEmitter emit_pass);
/* Key of a segment of the head or of a chunk of the loss: names what of the cut such segments see. */
SegmentKey lowering_loss_key(const Lowering *lowering, SegmentKind what);
/* A call whose arguments are still to come; appended; or at once: valid until the next one. */
Call lowering_new_call(int segment, int64_t layer, int64_t micro_batch);
void lowering_append_call(Lowering *lowering, Call call);
Call *lowering_add_call(Lowering *lowering, int segment, int64_t layer, int64_t micro_batch);
void lowering_call_group(Call *call, int arg, const GroupSite *site);
/* First buffer (value, gradient) of a boundary value. */
gint32 lowering_boundary(const StepSide *side, int64_t value);
/* Boundary values that layer i reads (n_layers: the head); returns how many. */
int lowering_layer_sources(const Lowering *lowering, int64_t layer, int64_t *ret_values);
void lowering_call_sources(const StepState *state, Call *call, const Graph *graph, int64_t layer);
/* Input of the graph that dies in its backward: the last boundary value it reads. */
int lowering_dying_source(const Graph *graph);
/*
 * A layer's pass, still to be appended; state moves on. Of a pass that is cut (lowering_cut_pass) the first part: the others
 * are the segments behind it, on the same arguments.
 */
Call lowering_forward_layer(StepState *state, int64_t layer);
Call lowering_backward_layer(StepState *state, int64_t layer);
/* Before a pass is emitted into a segment just started: it is to be cut where its rows travel, if passes interleave. */
void lowering_cut_pass(Lowering *lowering, LayerPass *pass);
/* Appends every part of a pass. */
void lowering_append_pass(Lowering *lowering, Call first);
/* What comes before the first layer's forward pass, and behind its backward pass, with the mark of the end. */
void lowering_begin_forward(StepState *state);
void lowering_end_backward(StepState *state);
LayerPass lowering_pass(Lowering *lowering, const Graph *graph, const RowCounts *rows);
/* The operator at which a chunked loss starts: the one that reads the head's matrix, and the tensor it reads. */
int head_find_cut(const Graph *head, int *ret_tensor);
int64_t head_n_chunks(const Lowering *lowering);
void head_forward(StepState *state);
void head_forward_chunk(StepState *state, int64_t chunk);
void head_backward(StepState *state);
/* Places of a group's gradients, in its order, when they lie in the frames of the embedding and the head. */
void head_end_grads(const Lowering *lowering, const FsdpGroup *group, int head_arg, Place *ret_grads);
