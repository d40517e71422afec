#include "models/check-pairs.h"

#include <math.h>

#include "models/execute.h"
#include "models/ops/attention.h"
#include "models/ops/cross-entropy.h"
#include "models/ops/expert-pass.h"
#include "models/ops/gdn.h"
#include "models/ops/grouped-gemm.h"
#include "models/ops/head-loss.h"
#include "models/ops/kda.h"
#include "models/ops/linear.h"
#include "models/ops/permute.h"
#include "models/ops/router.h"
#include "models/ops/sparse-attention.h"
#include "models/ops/unpermute.h"
#include "sim/base/error.h"
#include "sim/base/rng.h"

/* Largest relative difference of two float64 algorithms. */
static const double bound = 1e-11;

enum { TOKENS = 37, HIDDEN = 7, VOCAB = 23, HEADS = 2, VALUE_HEADS = 4, KEY_DIM = 5, VALUE_DIM = 3, EXPERTS = 6 };

static const CrossEntropyAttr loss_attrs[] = {
    {CROSS_ENTROPY_IGNORE, 0, 0, 0, LOSS_MEAN},
    {CROSS_ENTROPY_IGNORE, 0.1, 0.02, 6, LOSS_SUM},
};

/* Both ways have the inputs x and labels and the parameter lm_head.weight. */
static void build_loss(Graph *graph, gboolean second, int variant)
{
    const CrossEntropyAttr *attr = &loss_attrs[variant];
    int x = graph_add_input(graph, "x", ROWS_TOKENS, HIDDEN, DTYPE_FP64, TRUE);
    int labels = graph_add_input(graph, "labels", ROWS_TOKENS, 1, DTYPE_INT64, FALSE);
    if (second) {
        graph_add_output(graph, head_loss_add(graph, "lm_head", x, labels, VOCAB, 5, attr));
    } else {
        graph_add_output(graph,
                         cross_entropy_add(graph, "loss", linear_add(graph, "lm_head", x, VOCAB, FALSE), labels, attr));
    }
}

/* Chunks of 8 tokens against token by token. */
static void build_kda(Graph *graph, gboolean second, int variant)
{
    const KdaAttr attr = {.heads = HEADS,
                          .value_heads = VALUE_HEADS,
                          .key_dim = KEY_DIM,
                          .value_dim = VALUE_DIM,
                          .chunk = 8,
                          .gate = variant == 0 ? KDA_GATE_BOUNDED : KDA_GATE_SOFTPLUS,
                          .lower_bound = -5,
                          .recurrent = second};
    const int64_t widths[] = {HEADS * KEY_DIM, HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM, VALUE_HEADS * KEY_DIM,
                              VALUE_HEADS};
    static const char *const names[] = {"q", "k", "v", "z", "beta_logit"};
    int in[5];
    for (int i = 0; i < 5; i++) {
        in[i] = graph_add_input(graph, names[i], ROWS_TOKENS, widths[i], DTYPE_FP64, TRUE);
    }
    graph_add_output(graph, kda_add(graph, "self_attn", in, &attr));
}

static void build_gdn(Graph *graph, gboolean second, int variant)
{
    const GdnAttr attr = {.heads = HEADS,
                          .value_heads = VALUE_HEADS,
                          .key_dim = KEY_DIM,
                          .value_dim = VALUE_DIM,
                          .chunk = 8,
                          .recurrent = second};
    const int64_t widths[] = {HEADS * KEY_DIM, HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM, VALUE_HEADS, VALUE_HEADS};
    static const char *const names[] = {"q", "k", "v", "a", "beta_logit"};
    int in[5];
    (void)variant;
    for (int i = 0; i < 5; i++) {
        in[i] = graph_add_input(graph, names[i], ROWS_TOKENS, widths[i], DTYPE_FP64, TRUE);
    }
    graph_add_output(graph, gdn_add(graph, "self_attn", in, &attr));
}

/* Dense causal attention against sparse attention with every visible key selected. */
static void build_attention(Graph *graph, gboolean second, int variant)
{
    (void)variant;
    int q = graph_add_input(graph, "q", ROWS_TOKENS, VALUE_HEADS * KEY_DIM, DTYPE_FP64, TRUE);
    int k = graph_add_input(graph, "k", ROWS_TOKENS, HEADS * KEY_DIM, DTYPE_FP64, TRUE);
    int v = graph_add_input(graph, "v", ROWS_TOKENS, HEADS * VALUE_DIM, DTYPE_FP64, TRUE);
    if (second) {
        const SparseAttentionAttr attr = {
            .heads = VALUE_HEADS, .kv_heads = HEADS, .head_dim = KEY_DIM, .v_dim = VALUE_DIM};
        int sel = graph_add_input(graph, "sel", ROWS_TOKENS, TOKENS, DTYPE_INT32, FALSE);
        graph_add_output(graph, sparse_attention_add(graph, "attn", q, k, v, sel, &attr).o);
    } else {
        const AttentionAttr attr = {
            .heads = VALUE_HEADS, .kv_heads = HEADS, .head_dim = KEY_DIM, .v_dim = VALUE_DIM, .causal = TRUE};
        graph_add_output(graph, attention_add(graph, "attn", q, k, v, &attr).o);
    }
}

/* Permute, grouped GEMM and unpermute one after the other against one pass; variant 1 drops slots. */
static void build_experts(Graph *graph, gboolean second, int variant)
{
    const RouterAttr attr = {.experts = EXPERTS,
                             .top_k = 2,
                             .score = ROUTER_SIGMOID,
                             .renorm = TRUE,
                             .scaling = 1,
                             .capacity = {.factor = variant == 0 ? 0 : 0.7},
                             .drop = MOE_DROP_PROBS};
    int x = graph_add_input(graph, "x", ROWS_TOKENS, HIDDEN, DTYPE_FP64, TRUE);
    RouterTensors t = router_add(graph, "gate", x, &attr);
    if (second) {
        graph_add_output(graph, expert_pass_add(graph, "experts", x, t.weights, t.order, VALUE_DIM, EXPERTS));
    } else {
        int rows = permute_add(graph, "permute", x, t.order);
        int y = grouped_gemm_add(graph, "experts", rows, VALUE_DIM, EXPERTS);
        graph_add_output(graph, unpermute_add(graph, "unpermute", y, t.weights, t.order));
    }
}

static const struct {
    const char *name;
    void (*build)(Graph *graph, gboolean second, int variant);
    int variant;
} pairs[] = {
    {"head and cross entropy = vocabulary slices", build_loss, 0},
    {"head and cross entropy = vocabulary slices, all options", build_loss, 1},
    {"KDA, bounded gate: chunks = token by token", build_kda, 0},
    {"KDA, softplus gate: chunks = token by token", build_kda, 1},
    {"gated delta net: chunks = token by token", build_gdn, 0},
    {"dense attention = sparse attention to all keys", build_attention, 0},
    {"permute, grouped GEMM, unpermute = one pass", build_experts, 0},
    {"permute, grouped GEMM, unpermute = one pass, slots dropped", build_experts, 1},
};

int check_n_pairs(void)
{
    return (int)G_N_ELEMENTS(pairs);
}

const char *check_pair_name(int idx)
{
    return pairs[idx].name;
}

/* One side, run. */
typedef struct Side {
    Graph *graph;
    Execution *run;
    GPtrArray *made; /* Tensor */
} Side;

static void tensor_free_any(void *tensor)
{
    tensor_free(tensor);
}

static Tensor *made(Side *side, Tensor *tensor)
{
    g_ptr_array_add(side->made, tensor);
    return tensor;
}

static Tensor *random_tensor(Side *side, int n_dims, const int64_t *dims, uint64_t seed)
{
    Tensor *tensor = made(side, tensor_new(TENSOR_F64, n_dims, dims));
    for (int64_t i = 0; i < tensor_numel(tensor); i++) {
        tensor_set(tensor, i, rng_normal(seed, RNG_VALUES, (uint64_t)i));
    }
    return tensor;
}

/* Labels all over the vocabulary, some ignored. */
static Tensor *labels_tensor(Side *side)
{
    Tensor *labels = made(side, tensor_new_2d(TENSOR_I64, TOKENS, 1));
    for (int64_t t = 0; t < TOKENS; t++) {
        tensor_set(labels, t, t % 5 == 4 ? CROSS_ENTROPY_IGNORE : (double)(t * 7 % VOCAB));
    }
    return labels;
}

/* Every token that a token sees. */
static Tensor *all_visible(Side *side)
{
    Tensor *sel = made(side, tensor_new_2d(TENSOR_I64, TOKENS, TOKENS));
    for (int64_t t = 0; t < TOKENS; t++) {
        for (int64_t s = 0; s < TOKENS; s++) {
            tensor_set(sel, t * TOKENS + s, s <= t ? (double)s : -1);
        }
    }
    return sel;
}

/* Value of an input by its type: labels are INT64, selections INT32. */
static Tensor *input_value(Side *side, const GraphTensor *shape, uint64_t seed)
{
    const int64_t dims[2] = {TOKENS, shape->width};
    return shape->dtype == DTYPE_INT64   ? labels_tensor(side)
           : shape->dtype == DTYPE_INT32 ? all_visible(side)
                                         : random_tensor(side, 2, dims, seed);
}

static gboolean side_run(Side *side, int idx, gboolean second, GError **error)
{
    static const RowCounts rows = {
        .rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = TOKENS, [ROWS_SEQUENCES] = 1, [ROWS_EXPERTS] = EXPERTS},
        .seq_len = TOKENS};
    side->graph = graph_new(DTYPE_FP64);
    side->made = g_ptr_array_new_with_free_func(tensor_free_any);
    pairs[idx].build(side->graph, second, pairs[idx].variant);
    graph_finish(side->graph);
    side->run = execute_new(side->graph, &rows, TENSOR_F64);
    for (guint i = 0; i < side->graph->inputs->len; i++) {
        int at = g_array_index(side->graph->inputs, int, i);
        execute_put(side->run, at, input_value(side, graph_tensor(side->graph, at), 10 + i));
    }
    for (guint i = 0; i < side->graph->params->len; i++) {
        const GraphParam *param = graph_param(side->graph, (int)i);
        execute_put_param(side->run, (int)i, random_tensor(side, param->n_dims, param->dims, 20 + i));
    }
    if (!execute_forward(side->run, error)) {
        return FALSE;
    }
    int out = g_array_index(side->graph->outputs, int, 0);
    const Tensor *value = execute_value(side->run, out);
    execute_put_grad(side->run, out, random_tensor(side, value->n_dims, value->dims, 30));
    return execute_backward(side->run, error);
}

static void side_clear(Side *side)
{
    execute_free(side->run);
    graph_free(side->graph);
    if (side->made != NULL) {
        g_ptr_array_unref(side->made);
    }
}

/* Largest difference relative to the largest number, as a part of the bound. */
static gboolean compare(const char *pair, const char *what, const Tensor *a, const Tensor *b, double *worst,
                        GError **error)
{
    double size = 1e-3, off = 0;
    for (int64_t i = 0; a != NULL && b != NULL && i < tensor_numel(a); i++) {
        size = fmax(size, fabs(tensor_get(a, i)));
        off = fmax(off, fabs(tensor_get(a, i) - tensor_get(b, i)));
    }
    double part = (a == NULL) != (b == NULL) ? (double)INFINITY : off / size / bound;
    *worst = fmax(*worst, part);
    if (!(part <= 1)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "%s: %s differs by %.3g of its size", pair, what,
                    off / size);
        return FALSE;
    }
    return TRUE;
}

static gboolean compare_sides(int idx, const Side *a, const Side *b, double *worst, GError **error)
{
    gboolean ok =
        compare(pairs[idx].name, "the output", execute_value(a->run, g_array_index(a->graph->outputs, int, 0)),
                execute_value(b->run, g_array_index(b->graph->outputs, int, 0)), worst, error);
    for (guint i = 0; ok && i < a->graph->inputs->len; i++) {
        int at = g_array_index(a->graph->inputs, int, i), bt = g_array_index(b->graph->inputs, int, i);
        ok = compare(pairs[idx].name, graph_tensor(a->graph, at)->name, execute_grad(a->run, at),
                     execute_grad(b->run, bt), worst, error);
    }
    for (guint i = 0; ok && i < a->graph->params->len; i++) {
        ok = compare(pairs[idx].name, graph_param(a->graph, (int)i)->name, execute_param_grad(a->run, (int)i),
                     execute_param_grad(b->run, (int)i), worst, error);
    }
    return ok;
}

gboolean check_pair(int idx, double *ret_worst, GError **error)
{
    Side first = {0}, second = {0};
    *ret_worst = 0;
    gboolean ok = side_run(&first, idx, FALSE, error) && side_run(&second, idx, TRUE, error) &&
                  compare_sides(idx, &first, &second, ret_worst, error);
    side_clear(&first);
    side_clear(&second);
    return ok;
}
