/*
 * Retention: where what a layer computes stays between its forward and its backward pass.
 *
 * One table per layer answers this for every operator: in HBM, in the host's DDR (copied out after the operator, fetched
 * back ahead of the layer's backward pass), or nowhere (computed again). memory.recompute, memory.keep,
 * memory.offload_fraction and memory.cache are ways to fill the tables; lowering, both interpreters and the footprint
 * know the tables alone. The sequence of accesses of a step is fixed before it runs, so all decisions of a cache are made
 * here, once for all ranks, and the program carries them.
 *
 * Two kinds of table, by the pass's SaveMode:
 *  - SAVE_ALL: autograd saves what each derivative needs; a slot is one tensor that one operator saves. Slots that moved
 *    are copied one by one, also when two operators save the same tensor, and come back as copies of their own, as hooks on
 *    saved tensors do;
 *  - SAVE_SELECTED: the layer is checkpointed; the results of an operator (outputs and auxiliary tensors) are one entry.
 *
 * A cache moves entries while the forward pass goes on: `made` says where the forward pass of the layer leaves them,
 * `found` where its backward pass finds them, and events lie between. Events stand between the passes of layers, at
 * places in the order of the step: i = before the forward pass of layer i, n_layers = before the head, then before the
 * head's backward pass, then before the backward pass of the last, …, first layer.
 *
 * Invariants: (1) what is in DDR is fetched once, before its layer's backward pass; (2) what moves to DDR in SAVE_SELECTED
 * keeps its HBM until the compute stream has waited for the copy; (3) tables and events depend on nothing that differs
 * between ranks, so that members of a group recompute the same collectives.
 */
#pragma once

#include "models/block.h"
#include "workloads/plan/plan.h"
#include "workloads/plan/routing.h"

/* Which activations outlive the forward pass. */
typedef enum SaveMode {
    SAVE_ALL,       /* what backward needs, as autograd keeps it */
    SAVE_NONE,      /* checkpointed: nothing but the inputs */
    SAVE_SELECTED,  /* checkpointed: inputs and results of the operators that the table names */
    SAVE_RECOMPUTE, /* the second run of a checkpointed pass: as SAVE_ALL, stopping after the last tensor to keep */
} SaveMode;

typedef enum Keeping { KEEP_NOT, KEEP_HBM, KEEP_DDR } Keeping;

/* Slots of an operator: its inputs, its outputs, its auxiliary tensors. */
enum { SLOT_OUTPUT = OP_INPUTS_MAX, SLOT_AUX = SLOT_OUTPUT + OP_OUTPUTS_MAX, N_SLOTS = SLOT_AUX + OP_AUX_MAX };

typedef struct Retention {
    SaveMode mode;
    int n_ops;
    gboolean intercepts; /* SAVE_SELECTED: the host looks every operator up when it runs (selective checkpointing) */
    gint32 id;      /* tables of equal content have equal ids */
    guint8 *runs;   /* by operator: a recomputation needs it; NULL: it runs everything that is not kept, as checkpoints do */
    gboolean runs_experts; /* with runs: one of these reads parameters of experts */
    guint8 *of_op;  /* SAVE_SELECTED: Keeping of the results of each operator */
    guint64 *moved; /* SAVE_ALL: bit s = slot s of the operator lies in DDR */
    gboolean has_ddr;
} Retention;

typedef enum SwapAction {
    SWAP_RELEASE, /* compute waits for copies out; the HBM is free */
    SWAP_FORGET,  /* what lies in DDR is given up */
    SWAP_DROP,    /* results in HBM are given up: backward computes them again */
    SWAP_OUT,     /* copied to DDR */
    SWAP_FETCH,   /* copied back */
} SwapAction;

typedef struct SwapEvent {
    gint32 at;     /* place in the order of the step */
    SwapAction action;
    gint32 layer;
    gint32 id;     /* events of equal action and operators have equal ids */
    guint8 *ops;   /* by operator of the layer's graph: part of it */
} SwapEvent;

/* What happened to the entries of a cache, over one micro-batch. */
typedef struct CacheCounts {
    int64_t n_entries, hbm_hits, ddr_hits, misses, evictions;
    int64_t hit_bytes, miss_bytes;   /* entries found, and computed again */
    int64_t hbm_bytes, ddr_bytes;    /* most that entries held in each tier */
    double saved_s, recomputed_s;    /* of recomputation, by the laws of the device, alone on it */
    double next_hbm_gib_s, next_ddr_gib_s; /* what one more GiB of either budget would save, by the choice's closed form */
} CacheCounts;

typedef struct RetentionPlan {
    int64_t n_layers;
    GPtrArray *tables; /* Retention, owned */
    const Retention **made, **found; /* [n_layers] */
    GArray *events;    /* SwapEvent, in the order of the step */
    gboolean hooks;    /* memory of what moves is free once the copy is issued (record_stream), and fetches wait for no one */
    gboolean has_ddr;
    CacheCounts counts;
    int n_refs;
} RetentionPlan;

typedef struct CacheStock CacheStock; /* cache-stock.h */

/*
 * The tables of a plan. Every expert-parallel group draws its own loads, and all must decide alike, because groups that share
 * experts gather together: sizes here are those of even loads. stock: what a cache could hold, or NULL if nobody knows yet.
 */
RetentionPlan *retention_plan_new(const Plan *plan, const ModelGraph *graphs, const CacheStock *stock);

/* One more owner; each frees it. */
RetentionPlan *retention_plan_ref(RetentionPlan *plan);
void retention_plan_free(RetentionPlan *plan);

/* Memory that it takes. */
size_t retention_plan_size_bytes(const RetentionPlan *plan);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RetentionPlan, retention_plan_free)

/* First event at or behind a place. */
guint retention_first_event(const RetentionPlan *plan, gint32 at);

/* Places of the order of the step. */
gint32 retention_before_forward(const RetentionPlan *plan, int64_t layer); /* n_layers: the head */
gint32 retention_before_head_backward(const RetentionPlan *plan);
gint32 retention_before_backward(const RetentionPlan *plan, int64_t layer);

/*
 * A table under construction: all KEEP_NOT. retention_plan_share() ends it: returns the equal table that the plan already
 * owns, or this one, which it then owns.
 */
Retention *retention_new(SaveMode mode, int n_ops);
const Retention *retention_plan_share(RetentionPlan *plan, Retention *table);

/* From here on the table's recomputation leaves out what nobody needs. Call once, when of_op is final. */
void retention_prune(Retention *table, const Graph *graph);

/* Whether a recomputation runs an operator that is not kept. */
gboolean retention_runs(const Retention *table, int op);

/* Whether a recomputation runs an operator that reads experts' parameters: then, and only then, it gathers them. */
gboolean retention_runs_experts(const Retention *table);

/* Adds an event; ops (n of them) are copied. Call retention_plan_sort() after the last. */
void retention_add_event(RetentionPlan *plan, gint32 at, SwapAction action, int64_t layer, const guint8 *ops, int n_ops);
void retention_plan_sort(RetentionPlan *plan);

/*
 * Events that follow from tables: what a forward pass leaves in DDR is released memory.cache.window layers later, what
 * backward finds there is fetched as many layers ahead.
 */
void retention_add_traffic(RetentionPlan *plan, int64_t layer, int64_t window);

/* Rows of a layer's passes on the rank that has most of them. */
RowCounts retention_rows(const Plan *plan, const Routing *routing, int64_t layer);

/* Results of an operator that an entry of a cache holds: outputs with memory of their own that are no copies, and auxiliary
 * tensors. Bytes; mask of the slots. 0 = nothing to keep. */
int64_t retention_entry(const Graph *graph, const RowCounts *rows, int op, guint64 *ret_slots);

/* Bytes that an operator saves for its backward and that no operator before has saved; seen: by tensor, updated. Inputs of the
 * graph do not count. */
int64_t retention_saved_bytes(const Graph *graph, const RowCounts *rows, int op, guint8 *seen);

/* First operator that a recomputation of the whole graph does not reach: results from there on are of no use. */
int retention_recompute_end(const Graph *graph, const RowCounts *rows);
