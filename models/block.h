/*
 * Blocks: layer kinds as lists of operators, one file each in models/blocks, one line each in blocks.def.
 *
 * model_graph_new() assembles a whole model from them: embedding, one graph per distinct kind of layer, head.
 *
 * Invariants of a ModelGraph: (1) two layers share a graph if and only if they have the same structure: sublayers,
 * widths, window, sources, and which sources need a gradient; (2) parameter names inside a layer's graph are
 * checkpoint names without "<prefix>layers.<i>.", those of the other graphs are whole; stacked experts
 * "…experts.w1.weight" stand for "…experts.<e>.w1.weight"; (3) a parameter whose op is -1 belongs to the layer and
 * is used by no operator (the first layer's attention mix of AttnRes models): its gradient is zero.
 */
#pragma once

#include "models/graph.h"
#include "models/model.h"
#include "models/moe-tables.h"
#include "models/params.h"

/* Over which tokens a balancing loss balances: a rank's micro-batch, each sequence, or those of all ranks. */
typedef enum BalanceScope { BALANCE_MICRO_BATCH, BALANCE_SEQUENCE, BALANCE_GLOBAL_BATCH, N_BALANCE_SCOPES } BalanceScope;

/* How the graphs are to be built. All zero is a plain training graph of compute type DTYPE 0: set `compute`. */
typedef struct BlockOptions {
    Dtype compute;      /* type of activations */
    int64_t ep_size;    /* > 1: dispatch and combine operators stand around the experts; 0 counts as 1 */
    gboolean eager[64]; /* by OpKind: priced as a chain of framework operators */
    int64_t fp8_align;  /* > 0: products of layers' weights whose sizes are multiples of it run in FP8; head and adapters do not */
    gboolean fp8_codes; /* codes of weights outlive the products: no pass makes them */
    gboolean lora;      /* base frozen; adapters on the targets below */
    int64_t lora_rank;
    double lora_scale; /* alpha / rank; 0 = 1 */
    gboolean lora_attention, lora_shared, lora_experts, lora_shared_a;
    int64_t image_tokens;                             /* > 0: the vision tower is part of the graph */
    gboolean chunked_loss_tokens, chunked_loss_vocab; /* head and loss run per chunk */
    int64_t vocab_chunk;                              /* columns per vocabulary slice, 0 = whole */
    MoeCapacity capacity;                             /* factor 0 = dropless */
    int64_t capacity_scope;                           /* tokens in a row that share capacities; 0 = all of the run */
    gboolean capacity_adaptive;                       /* the capacity comes with the rows */
    gboolean pad_experts;                             /* every expert computes exactly its capacity */
    int64_t expert_slots;                             /* experts and copies of them; 0 = the model's experts */
    MoeDrop drop;
    gboolean token_dispatch, dispatch_to_all; /* with ep_size > 1: tokens travel once to each rank, or all to all ranks */
    gboolean early_shared; /* shared experts stand behind the dispatch, so that they run while rows travel */
    int64_t overlap_chunks; /* with ep_size > 1: chunks of tokens that travel and are computed in turn; 0 counts as 1 */
    /*
     * Losses beside the main one, each an output of its layer's graph behind the first: Switch balancing loss and
     * z-loss of a router, KL loss of an indexer: coefficients. 0 = none; an indexer without its loss is frozen.
     */
    double aux_loss, z_loss, index_loss;
    BalanceScope aux_scope;
    int64_t aux_tokens;  /* tokens of a rank's micro-batch; 0 = all of the run */
    int64_t aux_passes;  /* global batch: micro-batches that take turns in a run (models/ops/router-counts.h); 0 = 1 */
} BlockOptions;

/*
 * Adds one sublayer to a graph: reads tensor x ([TOKENS, hidden]) and returns the tensor of its result
 * before the residual addition. (Vision: x are pixels, [PATCHES, 3 patch^2], and the result [IMAGE_TOKENS, hidden].)
 * Extra losses become outputs of the graph.
 */
typedef int (*BlockBuild)(Graph *graph, const Model *model, const ModelLayer *layer, const BlockOptions *options,
                          int x);

typedef struct BlockClass {
    const char *title;
    BlockBuild build;
} BlockClass;

/* The registry, for those that walk over all of it. */
typedef enum BlockKind {
#define BLOCK(id, title) BLOCK_##id,
#include "models/blocks.def"
#undef BLOCK
    N_BLOCKS
} BlockKind;
const BlockClass *block_class(BlockKind kind);

/* A linear layer y = x Wt (+ bias), with adapters when `adapted` and the options ask for LoRA. Returns y. */
int block_linear(Graph *graph, const BlockOptions *options, const char *name, int x, int64_t out_width, gboolean bias,
                 gboolean adapted);

/*
 * q, k and v of a linear attention: projections self_attn.{q,k,v}_proj, then {q,k,v}_conv1d: a short convolution with SiLU,
 * or the SiLU alone where the model has no convolution. q, k: [TOKENS, lin_heads x lin_key_dim]; v: [TOKENS, lin_value_heads
 * x lin_value_dim].
 */
void block_linear_streams(Graph *graph, const Model *model, const BlockOptions *options, int x, int ret_qkv[3]);

/* RMSNorm of the rows of x (or of `width`-sized parts of them, for per-head norms). Returns y. */
int block_norm(Graph *graph, const char *name, int x, int64_t width, double eps, gboolean zero_centered);

/* x + y. Returns the sum. */
int block_add(Graph *graph, const char *name, int x, int y);

/* An MLP of the model's activation, gated or not: PREFIX.{gate,up,down}_proj. Returns y. */
int block_mlp(Graph *graph, const Model *model, const BlockOptions *options, const char *prefix, int x, int64_t width,
              gboolean adapted);

/* Activation of gate and up branch (up -1 in ungated models), as the model has it. Returns y. */
int block_activation(Graph *graph, const Model *model, const char *name, int gate, int up);

/* A whole model as graphs. */
typedef struct ModelGraph {
    Graph *embedding; /* input: token ids; output: stream */
    GPtrArray
        *kinds;      /* Graph: distinct layers; inputs: sources (bank rows, then prefix); outputs: new prefix, losses */
    int *layer_kind; /* [n_layers] index into kinds */
    Graph *head;     /* inputs: sources, labels; output: sum of the losses of the tokens */
    int head_chunk_op; /* the head's operators from here on run per chunk of a chunked loss */
    Graph *vision;     /* or NULL; inputs: pixels, grid, positions of patches; output: rows of the stream */
    gboolean tied;     /* the head's matrix is the embedding's, no parameter of its own */
    int64_t n_layers;
    gboolean is_variant; /* all but the head is another's */
} ModelGraph;

ModelGraph *model_graph_new(const Model *model, const BlockOptions *options);
void model_graph_free(ModelGraph *graph);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ModelGraph, model_graph_free)

/*
 * The graphs of the same model and options with slices of the vocabulary of another width. They share everything with `graph`,
 * whose loss runs in such slices and which must outlive them.
 */
ModelGraph *model_graph_vary(const ModelGraph *graph, int64_t vocab_chunk);

/* Memory that it takes; of a variant what is its own. */
size_t model_graph_size_bytes(const ModelGraph *graph);

/* Graph of a layer; how many layers are of a kind. */
const Graph *model_graph_layer(const ModelGraph *graph, int64_t layer);
int64_t model_graph_n_layers(const ModelGraph *graph, int kind);

/* Whole checkpoint name of a parameter; layer -1 for embedding, head and vision. Caller frees. */
char *model_graph_param_name(const Model *model, int64_t layer, const GraphParam *param);

/* Parameters counted from the graphs, adapters left out; and the adapters alone. */
void model_graph_count(const ModelGraph *graph, const Model *model, ParamCounts *ret_counts);
int64_t model_graph_count_adapters(const ModelGraph *graph);
