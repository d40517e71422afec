/*
 * Graph: a piece of a model (embedding, one layer, head) as operators over tensors, in forward order.
 *
 * A graph holds structure, not sizes: a tensor has a width and a row space, and the rows of each space are
 * given when the graph is priced or run (RowCounts). So one graph serves every layer of its kind, any number
 * of tokens and any expert load.
 *
 * Invariants: (1) operators are in a legal forward order; every tensor has one producer or is an input of
 * the graph; (2) a parameter belongs to one graph; (3) a tensor needs a gradient if and only if a trainable
 * parameter or an input that needs one lies upstream of it through differentiable operators.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "sim/base/dtype.h"

enum { GRAPH_NAME_MAX = 64, OP_INPUTS_MAX = 16, OP_OUTPUTS_MAX = 16, OP_PARAMS_MAX = 6, TOKEN_CHUNKS_MAX = 8 };

/* What the rows of a tensor count. */
typedef enum RowSpace {
    ROWS_ONE,      /* one row: scalars, per-layer vectors */
    ROWS_TOKENS,   /* tokens of the micro-batch on this rank (of the chunk, inside a chunked loss) */
    ROWS_SLOTS,    /* token-expert pairs that this rank sends: tokens x k, less what is dropped */
    ROWS_RECEIVED, /* token-expert pairs that this rank's experts compute */
    ROWS_EXPERTS,  /* slots of experts in the expert-parallel group: the model's experts, and copies of them */
    ROWS_LOCAL_EXPERTS,
    ROWS_PAIRS,     /* token pairs inside sequences: sum of squared lengths */
    ROWS_SEQUENCES, /* sequences (packed documents) */
    ROWS_PATCHES,   /* vision: image patches */
    ROWS_IMAGE_TOKENS, /* vision: merged patches */
    ROWS_ARRIVED,      /* tokens that a token dispatch brings to this rank */
    ROWS_OF_CHUNKS,    /* from here on: those of each chunk of tokens, see row_space_of_chunk() */
    N_CHUNK_SPACES = 4, /* tokens, slots, received, arrived */
    N_ROW_SPACES = ROWS_OF_CHUNKS + N_CHUNK_SPACES * TOKEN_CHUNKS_MAX
} RowSpace;

/*
 * A space as operators of a chunk see it (chunks from 1; 0 = no chunk): tokens, slots and what is received are the chunk's, all
 * others are one for all. And back: which of the whole's spaces that is.
 */
RowSpace row_space_of_chunk(RowSpace space, int chunk);
RowSpace row_space_kind(RowSpace space);

/* Chunk c (from 0) of n consecutive ones of so many tokens: its first token, c = n: one behind the last. Sizes differ by one at most. */
int64_t token_chunk_start(int64_t tokens, int64_t n, int64_t c);

/* Rows of every space, and what else sizes a pass. */
typedef struct RowCounts {
    int64_t rows[N_ROW_SPACES];
    int64_t seq_len;                  /* tokens per sequence: rows[TOKENS] = sequences x seq_len */
    const int64_t *local_expert_rows; /* rows[RECEIVED] split over the local experts, or NULL = even */
    const int64_t *chunk_expert_rows; /* the same of each chunk, one behind the other, or NULL = even */
    int64_t capacity;                 /* slots of an expert on this rank where the router's attributes do not say; 0 = they do */
    const struct Placement *placement; /* values only: slots of the experts (models/placement.h), or NULL = one each */
    int64_t source;                   /* values only: place in the expert-parallel group */
    const int64_t
        *choices; /* values only: experts that each token takes [TOKENS, top_k], or NULL = the router chooses */
    const int64_t *doc_starts;        /* values only: rows[SEQUENCES] + 1 offsets, or NULL = equal lengths */
} RowCounts;

/* Sets the tokens of each of n chunks from those of all. */
void row_counts_cut(RowCounts *rows, int64_t n);

/* What the memory of a tensor is called in reports. */
typedef enum MemTag {
    MEM_PARAMETERS,
    MEM_GRADIENTS,
    MEM_OPTIMIZER,
    MEM_ACTIVATIONS,
    MEM_UNSHARDED,
    MEM_DISPATCH,
    MEM_LOGITS,
    MEM_CACHE,
    MEM_WORKSPACE,
    N_MEM_TAGS
} MemTag;

typedef struct GraphTensor {
    char name[GRAPH_NAME_MAX];
    RowSpace rows;
    int64_t width; /* elements per row */
    Dtype dtype;
    MemTag tag;
    int producer;        /* operator, or -1 for an input of the graph */
    int n_consumers;     /* operators that read it, once per use */
    gboolean needs_grad; /* set by graph_finish() */
} GraphTensor;

/* How FSDP and EP split a parameter. */
typedef enum ParamSplit {
    PARAM_DENSE,  /* FSDP over the dense mesh, dimension 0 */
    PARAM_EXPERT, /* dimension 0 over EP, then FSDP over the expert mesh */
} ParamSplit;

/* What optimizers and reports need to know of a parameter. */
typedef enum ParamRole {
    PARAM_MATRIX,
    PARAM_VECTOR, /* norms, biases, gates: no weight decay */
    PARAM_EMBEDDING,
    PARAM_HEAD,
    PARAM_BUFFER, /* counted but never trained: router selection bias */
} ParamRole;

typedef struct GraphParam {
    char name[GRAPH_NAME_MAX]; /* checkpoint name inside the layer: "self_attn.q_proj.weight" */
    int64_t dims[3];
    int n_dims; /* expert parameters: dims[0] = experts of the model (before EP) */
    ParamSplit split;
    ParamRole role;
    gboolean always_fp32; /* A_log, dt_bias, router bias: not cast to the compute type */
    gboolean trainable;
    gboolean is_adapter;  /* LoRA matrix: not part of the base model's count */
    int op;               /* operator that owns it */
    int64_t heads;        /* row blocks of attention heads, [heads x d, in]; 1 = one matrix */
} GraphParam;

typedef struct Op Op;

typedef struct Graph {
    GArray *ops;     /* Op */
    GArray *tensors; /* GraphTensor */
    GArray *params;  /* GraphParam */
    GArray *inputs;  /* int: tensors given from outside, in order */
    GArray *outputs; /* int: tensors handed on, in order */
    GPtrArray *attrs; /* owned attribute structs of the operators */
    gboolean eager_default;
    Dtype compute; /* type of activations and of gathered weights */
    int64_t ep_size;
    gboolean freeze_base; /* LoRA: parameters added from now on are frozen, adapters excepted */
    int chunk;    /* tensors and operators added from now on are those of that chunk of tokens (from 1), 0 = of no chunk */
    int n_chunks; /* chunks that have operators */
} Graph;

/* An empty graph; free with graph_free (NULL is fine). */
Graph *graph_new(Dtype compute);
void graph_free(Graph *graph);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Graph, graph_free)

/*
 * The same graph with operators of its own: one of them may be given other attributes. Everything else is that of `graph`, which
 * must outlive it. Free with graph_free.
 */
Graph *graph_vary(const Graph *graph);

/* Whether two graphs are one, or such variants: then a parameter of the one is that of the other. */
gboolean graph_is_variant(const Graph *a, const Graph *b);

/* Memory that it takes. */
size_t graph_size_bytes(const Graph *graph);

/* Adds a tensor given from outside; returns its index. */
int graph_add_input(Graph *graph, const char *name, RowSpace rows, int64_t width, Dtype dtype, gboolean needs_grad);

/* Adds a tensor that the next operator will produce; returns its index. Tag MEM_ACTIVATIONS unless changed. */
int graph_add_tensor(Graph *graph, const char *name, RowSpace rows, int64_t width, Dtype dtype);

/*
 * Adds a parameter of up to 3 dimensions (0 = absent); returns its index. Dense and trainable (frozen under
 * freeze_base); the caller changes fields through graph_param(). Chunks of tokens share theirs: from the second chunk on the
 * parameter of that name is returned.
 */
int graph_add_param(Graph *graph, const char *name, ParamRole role, int64_t d0, int64_t d1, int64_t d2);

/* Says that the rows of the parameter of that name (if there is one) are those of so many heads. */
void graph_set_heads(Graph *graph, const char *name, int64_t heads);

/* Whether it is a hidden matrix, or a stack of them: what Muon takes. Embeddings, heads, norms and vectors are not. */
gboolean graph_param_is_matrix(const GraphParam *param);

/* Marks a tensor as handed on. */
void graph_add_output(Graph *graph, int tensor);

/* Whether a tensor is what the graph hands on first: the stream. Further outputs are losses beside the main one. */
gboolean graph_is_result(const Graph *graph, int tensor);
gboolean graph_is_loss(const Graph *graph, int tensor);

/*
 * Ends construction: counts consumers, derives needs_grad. Call once, after the last operator.
 */
void graph_finish(Graph *graph);

GraphTensor *graph_tensor(const Graph *graph, int idx);
GraphParam *graph_param(const Graph *graph, int idx);
Op *graph_op(const Graph *graph, int idx);
int graph_n_ops(const Graph *graph);

/* Elements of a parameter, whole (before any split). */
int64_t graph_param_numel(const GraphParam *param);

/* Elements, or bytes, of a tensor for given rows. */
int64_t graph_tensor_numel(const GraphTensor *tensor, const RowCounts *rows);
int64_t graph_tensor_bytes(const GraphTensor *tensor, const RowCounts *rows);
