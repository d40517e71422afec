/*
 * Blocks: layer kinds as lists of operators, one file each in models/blocks, one line each in blocks.def.
 *
 * model_graph_new() assembles a whole model from them: embedding, one graph per distinct kind of layer, head.
 */
#pragma once

#include "models/graph.h"
#include "models/model.h"

/* How the graphs are to be built. */
typedef struct BlockOptions {
    Dtype compute;             /* type of activations */
    int64_t ep_size;           /* > 1: dispatch and combine operators stand around the experts */
    gboolean eager[64];        /* by OpKind: priced as a chain of framework operators */
    gboolean lora;             /* base frozen; adapters on the targets below */
    int64_t lora_rank;
    gboolean lora_attention, lora_shared, lora_experts, lora_shared_a;
    int64_t image_tokens;      /* > 0: the vision tower is part of the graph */
    gboolean chunked_loss_tokens, chunked_loss_vocab; /* head and loss run per chunk */
    int64_t vocab_chunk;       /* columns per vocabulary slice, 0 = whole */
} BlockOptions;

/*
 * Adds one sublayer to a graph: reads tensor x ([TOKENS, hidden]) and returns the tensor of its result
 * before the residual addition. prefix names parameters and operators ("self_attn").
 */
typedef int (*BlockBuild)(Graph *graph, const Model *model, const ModelLayer *layer, const BlockOptions *options, int x);

typedef struct BlockClass {
    const char *title;
    BlockBuild build;
} BlockClass;

/* A linear layer y = x Wt (+ bias), with adapters when `adapted` and the options ask for LoRA. Returns y. */
int block_linear(Graph *graph, const BlockOptions *options, const char *name, int x, int64_t out_width, gboolean bias, gboolean adapted);

/* RMSNorm of the rows of x (or of `width`-sized parts of them, for per-head norms). Returns y. */
int block_norm(Graph *graph, const char *name, int x, int64_t width, double eps, gboolean zero_centered);

/* x + y. Returns the sum. */
int block_add(Graph *graph, const char *name, int x, int y);

/* A whole model as graphs. */
typedef struct ModelGraph {
    Graph *embedding;     /* input: token ids; output: stream */
    GPtrArray *kinds;     /* Graph: distinct layers; inputs: sources (bank rows, then prefix); output: new prefix */
    int *layer_kind;      /* [n_layers] index into kinds */
    Graph *head;          /* inputs: sources; output: loss */
    Graph *vision;        /* or NULL */
    int64_t n_layers;
} ModelGraph;

ModelGraph *model_graph_new(const Model *model, const BlockOptions *options);
void model_graph_free(ModelGraph *graph);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ModelGraph, model_graph_free)

/*
 * Number of boundary tensors that layer i reads: 1 without attention residuals. With them, the rows of the
 * bank before layer i and, unless the layer starts a block with an empty prefix, the prefix.
 */
