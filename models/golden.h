/*
 * Golden cases: numbers of an independent implementation, one operator case per safetensors file, against ours.
 *
 * An adapter, one line in golden.def, says how a case of an operator maps to a graph: it adds inputs that carry the
 * names of the file's tensors, operators, and which tensors and parameters are the file's outputs and weights. The
 * runner does the rest: values, upstream gradients, backward, comparison.
 *
 *     gboolean golden_rmsnorm(GoldenCase *c, GError **error)
 *     {
 *         int x = golden_input(c, "x", ROWS_TOKENS, TRUE);
 *         golden_output(c, "y", rmsnorm_add(c->graph, "norm", x, golden_number(c, "eps", 1e-5), FALSE));
 *         golden_param(c, "norm.weight", "w");
 *         return golden_run(c, error);
 *     }
 *
 * Every out.X and grad.X of a file must be held against something of ours, or the case fails.
 *
 * Names in a file: in.X input or parameter, out.X output, gout.X upstream gradient of an output, grad.X gradient of an
 * input or of an intermediate out.X. Every case runs in float64 and in float32.
 *
 * Bounds: |a - b| <= rel max|b| + abs max(1, max|gout|) in maximum norm, rel and abs 1e-10 and 1e-13 in float64, 2e-5
 * and 1e-6 in float32; integers are equal.
 */
#pragma once

#include "models/execute.h"
#include "models/safetensors.h"

/* One comparison's outcome, and the case's so far. */
typedef struct GoldenResult {
    gboolean passed;
    double worst;       /* largest error as a part of its bound */
    double worst_error; /* that error, relative to the largest number of the tensor */
    char worst_at[GRAPH_NAME_MAX];
    int n_compared;
} GoldenResult;

typedef struct GoldenBinding {
    char name[GRAPH_NAME_MAX]; /* in the file, without prefix */
    int idx;                   /* tensor or parameter of the graph */
    Tensor *value;             /* owned; inputs and parameters */
} GoldenBinding;

typedef struct GoldenCase {
    const Safetensors *file;
    TensorType real; /* TENSOR_F64 or TENSOR_F32 */
    Graph *graph;
    RowCounts rows;                    /* golden_input sets the rows of its space; an adapter may set more */
    Execution *run;                    /* after golden_run */
    GArray *inputs, *params, *outputs; /* GoldenBinding */
    GArray *seeds;                     /* GoldenBinding: upstream gradients of an adapter's own making */
    GPtrArray *owned;                  /* Tensor */
    int64_t *doc_starts;
    gboolean *used;   /* by tensor of the file: read or compared */
    double abs_scale; /* max(1, max|gout|) */
    GoldenResult result;
} GoldenCase;

typedef gboolean (*GoldenAdapter)(GoldenCase *c, GError **error);

/* Attributes of the case. */
const char *golden_text(const GoldenCase *c, const char *key, const char *or_else);
double golden_number(const GoldenCase *c, const char *key, double or_else); /* "null", "None" and "" count as absent */
int64_t golden_int(const GoldenCase *c, const char *key, int64_t or_else);

/* Whether the file holds "in.X", say; the tensor in the case's precision, owned by the case (NULL if absent); its
 * dims[i] or 0. */
gboolean golden_has(const GoldenCase *c, const char *full_name);
const Tensor *golden_tensor(GoldenCase *c, const char *full_name);
int64_t golden_dim(GoldenCase *c, const char *full_name, int i);

/*
 * Adds an input of the graph that is in.X: rows = its first dimension (which sets the rows of the space), width = the
 * rest. in.cu_seqlens, if there, becomes the documents of TOKENS with the first TOKENS input. Returns the tensor.
 */
int golden_input(GoldenCase *c, const char *name, RowSpace space, gboolean needs_grad);

/* The same with given values instead of the file's (taken over). */
int golden_input_value(GoldenCase *c, const char *name, RowSpace space, gboolean needs_grad, Tensor *value);

/* The parameter of that name in the graph is in.X (same order of elements). */
void golden_param(GoldenCase *c, const char *param, const char *name);

/* The parameter has given values (taken over); name (may be NULL) is what its gradient is compared with. */
void golden_param_value(GoldenCase *c, const char *param, const char *name, Tensor *value);

/* The tensor is out.X: compared, and given gout.X if the file has it; its gradient is compared with grad.X if that
 * exists. */
void golden_output(GoldenCase *c, const char *name, int tensor);

/* An upstream gradient of the adapter's own making (taken over). */
void golden_seed(GoldenCase *c, int tensor, Tensor *grad);

/* The file's tensor is read by the adapter itself. Every out.X and grad.X must be used: compared, or read like this. */
void golden_use(GoldenCase *c, const char *full_name);

/* Finishes the graph, runs forward and (if anything was given a gradient) backward, compares everything bound. */
gboolean golden_run(GoldenCase *c, GError **error);

/* Compares a tensor with one of the file ("out.y", "grad.x"); FALSE only when the file lacks it or sizes differ. */
gboolean golden_compare(GoldenCase *c, const char *full_name, const Tensor *got, GError **error);

/* Whether an operator has an adapter. */
gboolean golden_knows(const char *op);

/*
 * Runs one file in one precision. FALSE and an error when it cannot be run; otherwise ret_result says how it went.
 * Operators without an adapter are an error.
 */
gboolean golden_check_file(const Safetensors *file, TensorType real, GoldenResult *ret_result, GError **error);
