#include "models/ops/sparse-attention.h"

#include <math.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/sequences.h"
#include "models/real.h"

#if REAL_HAS_CLASS
static SparseAttentionTensors outputs_add(Graph *graph, const char *name, Dtype dtype, const SparseAttentionAttr *attr)
{
    SparseAttentionTensors t = {.q_abs = -1};
    t.o = graph_add_tensor(graph, name, ROWS_TOKENS, attr->heads * attr->v_dim, dtype);
    t.lse = graph_add_tensor(graph, op_name(name, "lse").text, ROWS_TOKENS, attr->heads, DTYPE_FP32);
    if (attr->latent > 0) {
        int64_t width = attr->heads * (attr->latent + attr->rope_dim);
        t.q_abs = graph_add_tensor(graph, op_name(name, "q_abs").text, ROWS_TOKENS, width, dtype);
    }
    return t;
}

static SparseAttentionTensors sparse_add(Graph *graph, const char *name, int param, const int inputs[4], const SparseAttentionAttr *attr)
{
    SparseAttentionAttr full = *attr;
    if (full.scale <= 0) {
        full.scale = 1 / sqrt((double)full.head_dim);
    }
    g_assert(graph_tensor(graph, inputs[0])->width == full.heads * full.head_dim);
    SparseAttentionTensors t = outputs_add(graph, name, graph_tensor(graph, inputs[0])->dtype, &full);
    Op *op = op_add(graph, OP_sparse_attention, name, &full, sizeof full);
    for (int i = 0; i < 4; i++) {
        op_input(op, inputs[i]);
    }
    op_param(graph, op, param);
    op_output(graph, op, t.o);
    op_output(graph, op, t.lse);
    if (t.q_abs >= 0) {
        op_output(graph, op, t.q_abs);
    }
    return t;
}

SparseAttentionTensors sparse_attention_add(Graph *graph, const char *name, int q, int k, int v, int sel, const SparseAttentionAttr *attr)
{
    g_assert(attr->latent == 0 && attr->kv_heads > 0 && attr->heads % attr->kv_heads == 0);
    g_assert(graph_tensor(graph, k)->width == attr->kv_heads * attr->head_dim);
    g_assert(graph_tensor(graph, v)->width == attr->kv_heads * attr->v_dim);
    return sparse_add(graph, name, -1, (int[]){q, k, v, sel}, attr);
}

SparseAttentionTensors sparse_mla_add(Graph *graph, const char *name, const char *param, const int inputs[4], const SparseAttentionAttr *attr)
{
    int64_t rows = attr->heads * (attr->head_dim - attr->rope_dim + attr->v_dim);
    g_assert(attr->latent > 0 && attr->rope_dim > 0 && attr->rope_dim < attr->head_dim);
    g_assert(graph_tensor(graph, inputs[1])->width == attr->latent);
    g_assert(graph_tensor(graph, inputs[2])->width == attr->rope_dim);
    int weight = graph_add_param(graph, op_name(param, "weight").text, PARAM_MATRIX, rows, attr->latent, 0);
    return sparse_add(graph, name, weight, inputs, attr);
}

/* What one run computes on, in the form its core sees: q of width d, gathered keys and values. */
typedef struct SparseSize {
    double rows;         /* tokens x heads */
    double pairs;        /* selected keys, summed over tokens and heads */
    double d, dv;        /* core: latent + rope and latent, or head_dim and v_dim */
    int64_t tokens;
    int64_t gathered;    /* numbers fetched: every selected key once for all heads that share it */
    int64_t elem;        /* bytes of a number */
    int64_t kv;          /* numbers of all keys and values */
} SparseSize;

static SparseSize sparse_size(const OpView *view)
{
    const SparseAttentionAttr *attr = view->op->attr;
    gboolean absorbed = attr->latent > 0;
    int64_t d = absorbed ? attr->latent + attr->rope_dim : attr->head_dim;
    int64_t dv = absorbed ? attr->latent : attr->v_dim;
    int64_t key = absorbed ? d : attr->kv_heads * (d + dv); /* the latent is key and value at once */
    int64_t pairs = sequences_causal_pairs(view->rows, ROWS_TOKENS, op_in(view, 3)->width);
    SparseSize s = {.tokens = op_rows(view, ROWS_TOKENS), .d = (double)d, .dv = (double)dv, .elem = op_in_elem_bytes(view, 0)};
    s.rows = (double)s.tokens * (double)attr->heads;
    s.pairs = (double)pairs * (double)attr->heads;
    s.gathered = pairs * key;
    s.kv = s.tokens * key;
    return s;
}

static void sparse_attention_saved(const OpView *view, OpSaved *ret_saved)
{
    const SparseAttentionAttr *attr = view->op->attr;
    if (attr->latent == 0) {
        ret_saved->inputs = 15;
        ret_saved->outputs = 3;
        return;
    }
    ret_saved->inputs = 14u | (op_trains_param(view, 0) ? 1u : 0u);
    ret_saved->outputs = 6;
    op_saved_aux(ret_saved, ROWS_TOKENS, attr->heads * attr->latent, op_out(view, 0)->dtype); /* z */
}

static void set_shape(const OpView *view, Work *work)
{
    const SparseAttentionAttr *attr = view->op->attr;
    work->dtype = op_in(view, 0)->dtype;
    work->m = op_rows(view, ROWS_TOKENS);
    work->n = attr->heads;
    work->k = attr->latent > 0 ? attr->latent + attr->rope_dim : attr->head_dim;
    work->n_groups = sequences_count(view->rows, ROWS_TOKENS);
}

/* One product per head: rows of all heads are the rows of all groups. */
static Work *head_gemm_cost(const OpView *view, OpCost *ret_cost, int64_t n, int64_t k)
{
    const SparseAttentionAttr *attr = view->op->attr;
    int64_t m = op_rows(view, ROWS_TOKENS) * attr->heads;
    Work *work = op_cost_gemm(ret_cost, WORK_GROUPED_GEMM, op_in(view, 0)->dtype, m, n, k);
    work->n_groups = attr->heads;
    work->read_bytes += (attr->heads - 1) * dtype_bytes(work->dtype, n * k);
    return work;
}

static void head_wgrad_cost(const OpView *view, OpCost *ret_cost, int64_t m, int64_t n)
{
    const SparseAttentionAttr *attr = view->op->attr;
    int64_t k = op_rows(view, ROWS_TOKENS) * attr->heads;
    Work *work = op_cost_gemm(ret_cost, WORK_GROUPED_GEMM_WGRAD, op_in(view, 0)->dtype, m, n, k);
    work->n_groups = attr->heads;
    work->write_bytes *= attr->heads;
}

/* The part of the query that is not absorbed passes through the absorbing product's output. */
static void add_rope_pass(const OpView *view, Work *work)
{
    const SparseAttentionAttr *attr = view->op->attr;
    int64_t bytes = op_in_elem_bytes(view, 0) * op_rows(view, ROWS_TOKENS) * attr->heads * attr->rope_dim;
    work->read_bytes += bytes;
    work->write_bytes += bytes;
}

/* kernels.md 5.4; the softmax as in attention.c. One kernel in the eager form too: no chain of operators exists. */
static void sparse_attention_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const SparseAttentionAttr *attr = view->op->attr;
    SparseSize s = sparse_size(view);
    double flops = s.pairs * (2 * (s.d + s.dv) + 5) + s.rows * (s.dv + 2);
    int64_t q = s.elem * (int64_t)(s.rows * s.d);
    int64_t z = s.elem * (int64_t)(s.rows * s.dv);
    if (attr->latent > 0) {
        add_rope_pass(view, head_gemm_cost(view, ret_cost, attr->latent, attr->head_dim - attr->rope_dim));
    }
    Work *core = op_cost_stream(ret_cost, WORK_SPARSE_ATTENTION_FORWARD, flops, q + s.elem * s.gathered + op_in_bytes(view, 3),
                                z + op_out_bytes(view, 1));
    set_shape(view, core);
    ret_cost->pointwise_flops = 5 * s.pairs;
    if (attr->latent > 0) {
        head_gemm_cost(view, ret_cost, attr->v_dim, attr->latent);
    }
}

/*
 * Core: five products per pair, 6 d + 4 dv, and 6 more as in attention.c; D = dz z: 2 dv per row. Gradients of keys and
 * values are added up in fp32 where the selecting tokens meet, then rounded.
 */
static void core_backward_cost(const OpView *view, OpCost *ret_cost)
{
    SparseSize s = sparse_size(view);
    double flops = s.pairs * (6 * s.d + 4 * s.dv + 6) + s.rows * 2 * s.dv;
    int64_t q = s.elem * (int64_t)(s.rows * s.d);
    int64_t z = s.elem * (int64_t)(s.rows * s.dv);
    int64_t scattered = dtype_bytes(DTYPE_FP32, s.gathered);
    int64_t sums = dtype_bytes(DTYPE_FP32, s.kv);
    int64_t read = q + 2 * z + s.elem * s.gathered + op_in_bytes(view, 3) + op_out_bytes(view, 1) + scattered;
    set_shape(view, op_cost_stream(ret_cost, WORK_SPARSE_ATTENTION_BACKWARD, flops, read, q + scattered));
    ret_cost->pointwise_flops = 6 * s.pairs;
    op_cost_stream(ret_cost, WORK_COPY, 0, sums, s.elem * s.kv);
    ret_cost->workspace_bytes = sums + dtype_bytes(DTYPE_FP32, (int64_t)s.rows);
}

static void sparse_attention_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const SparseAttentionAttr *attr = view->op->attr;
    if (!op_has_backward(view)) {
        return;
    }
    if (attr->latent == 0) {
        core_backward_cost(view, ret_cost);
        return;
    }
    SparseSize s = sparse_size(view);
    int64_t nope = attr->head_dim - attr->rope_dim;
    head_gemm_cost(view, ret_cost, attr->latent, attr->v_dim); /* dz = do B_V */
    if (op_trains_param(view, 0)) {
        head_wgrad_cost(view, ret_cost, attr->v_dim, attr->latent);
    }
    core_backward_cost(view, ret_cost);
    add_rope_pass(view, head_gemm_cost(view, ret_cost, nope, attr->latent)); /* dq = dq~ B_Kt */
    if (op_trains_param(view, 0)) {
        head_wgrad_cost(view, ret_cost, nope, attr->latent);
    }
    ret_cost->workspace_bytes += s.elem * (int64_t)(s.rows * (s.d + s.dv)); /* dq~ and dz */
}

extern const OpClass op_sparse_attention;
const OpClass op_sparse_attention = {
    .id = "sparse_attention",
    .title = "sparse attention",
    .keep = OP_KEEP_ATTENTION,
    .no_grad_inputs = 8,
    .no_grad_outputs = 6,
    .saved = sparse_attention_saved,
    .forward_cost = sparse_attention_forward_cost,
    .backward_cost = sparse_attention_backward_cost,
};
#endif
