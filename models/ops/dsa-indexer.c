#include "models/ops/dsa-indexer.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/sequences.h"
#include "models/ops/layernorm.h"
#include "models/ops/linear.h"
#include "models/ops/rope.h"
#include "models/real.h"

#if REAL_HAS_CLASS
DsaIndexerTensors dsa_indexer_add(Graph *graph, const char *name, int q, int k, int w, const DsaIndexerAttr *attr)
{
    DsaIndexerTensors t = {.q = q, .k = k, .w = w, .scores = -1};
    g_assert(graph_tensor(graph, q)->width == attr->heads * attr->dim && graph_tensor(graph, k)->width == attr->dim);
    g_assert(graph_tensor(graph, w)->width == attr->heads && attr->top_k > 0);
    t.sel = graph_add_tensor(graph, op_name(name, "sel").text, ROWS_TOKENS, attr->top_k, DTYPE_INT32);
    if (attr->emit_scores) {
        t.scores = graph_add_tensor(graph, op_name(name, "scores").text, ROWS_PAIRS, 1, DTYPE_FP32);
    }
    Op *op = op_add(graph, OP_dsa_indexer, name, attr, sizeof *attr);
    op_input(op, q);
    op_input(op, k);
    op_input(op, w);
    op->detached = attr->emit_scores ? 0 : 7;
    op_output(graph, op, t.sel);
    if (t.scores >= 0) {
        op_output(graph, op, t.scores);
    }
    return t;
}

/* A linear layer through which no gradient flows back. */
static int detached_linear_add(Graph *graph, const char *name, int x, int64_t out_width)
{
    int y = linear_add(graph, name, x, out_width, FALSE);
    graph_op(graph, graph_n_ops(graph) - 1)->detached = 1;
    return y;
}

DsaIndexerTensors dsa_indexer_layer_add(Graph *graph, const char *prefix, int x, int cq, int positions, const DsaIndexerLayer *layer)
{
    int64_t heads = layer->select.heads;
    int64_t dim = layer->select.dim;
    int q = detached_linear_add(graph, op_name(prefix, "wq_b").text, cq, heads * dim);
    int k = detached_linear_add(graph, op_name(prefix, "wk").text, x, dim);
    k = layernorm_add(graph, op_name(prefix, "k_norm").text, k, layer->norm_eps);
    if (layer->rotary_dim > 0) {
        RopeAttr rope = {
            .heads = heads, .head_dim = dim, .rotary_dim = layer->rotary_dim, .base = layer->rope_base, .layout = ROPE_HALF};
        q = rope_add(graph, op_name(prefix, "q_rope").text, q, positions, &rope);
        rope.heads = 1;
        k = rope_add(graph, op_name(prefix, "k_rope").text, k, positions, &rope);
    }
    int w = detached_linear_add(graph, op_name(prefix, "weights_proj").text, x, heads);
    return dsa_indexer_add(graph, prefix, q, k, w, &layer->select);
}

static void dsa_indexer_saved(const OpView *view, OpSaved *ret_saved)
{
    const DsaIndexerAttr *attr = view->op->attr;
    ret_saved->inputs = attr->emit_scores && op_has_backward(view) ? 7 : 0;
}

/* Numbers of a score: dot product, relu, times weight, sum (kernels.md 5.4). */
static double score_flops(const DsaIndexerAttr *attr)
{
    return (double)attr->heads * (2 * (double)attr->dim + (attr->no_relu ? 2 : 3));
}

static void topk_cost(const OpView *view, OpCost *ret_cost, int64_t read_bytes)
{
    const DsaIndexerAttr *attr = view->op->attr;
    Work *topk = op_cost_stream(ret_cost, WORK_TOPK, 0, read_bytes, op_out_bytes(view, 0));
    topk->m = op_rows(view, ROWS_TOKENS);
    topk->n = sequences_longest(view->rows, ROWS_TOKENS);
    topk->k = attr->top_k;
}

/* Scores of all heads as one product per sequence, then relu, weights, sum over heads and mask as kernels of their own. */
static void eager_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const DsaIndexerAttr *attr = view->op->attr;
    int64_t elem = op_in_elem_bytes(view, 0);
    int64_t longest = sequences_longest(view->rows, ROWS_TOKENS);
    int64_t pairs = sequences_all_pairs(view->rows, ROWS_TOKENS);
    int64_t cube = elem * pairs * attr->heads;
    double n = (double)pairs * (double)attr->heads;
    int64_t n_sequences = sequences_count(view->rows, ROWS_TOKENS);
    op_cost_gemm(ret_cost, WORK_GEMM_NT, op_in(view, 0)->dtype, longest * attr->heads, longest, attr->dim)->n_launches = (int)n_sequences;
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, (double)op_rows(view, ROWS_TOKENS) * (double)attr->heads, op_in_bytes(view, 2), op_in_bytes(view, 2));
    if (!attr->no_relu) {
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, n, cube, cube);
    }
    op_cost_stream(ret_cost, WORK_STRIDED, n, cube + op_in_bytes(view, 2), cube);
    op_cost_stream(ret_cost, WORK_REDUCE, n, cube, elem * pairs);
    op_cost_stream(ret_cost, WORK_STRIDED, (double)pairs, elem * (pairs + longest * longest), elem * pairs);
    topk_cost(view, ret_cost, elem * pairs);
    ret_cost->workspace_bytes = 2 * cube;
}

/*
 * Two kernels: the causal scores in fp32, written out, and the selection that reads them; a block of rows at a time,
 * so that long sequences do not hold all scores.
 */
static void dsa_indexer_forward_cost(const OpView *view, OpCost *ret_cost)
{
    enum { ROWS_PER_BLOCK = 4096 };
    const DsaIndexerAttr *attr = view->op->attr;
    if (view->op->eager) {
        eager_forward_cost(view, ret_cost);
        return;
    }
    int64_t rows = op_rows(view, ROWS_TOKENS);
    int64_t pairs = sequences_causal_pairs(view->rows, ROWS_TOKENS, 0);
    int64_t scores = dtype_bytes(DTYPE_FP32, pairs);
    double flops = (double)pairs * score_flops(attr) + (double)rows * (double)attr->heads;
    int64_t read = op_in_bytes(view, 0) + op_in_bytes(view, 1) + op_in_bytes(view, 2);
    Work *work = op_cost_stream(ret_cost, WORK_GEMM_NT, flops, read, attr->emit_scores ? op_out_bytes(view, 1) : scores);
    work->dtype = op_in(view, 0)->dtype;
    work->m = rows * attr->heads;
    work->n = rows > 0 ? MAX(pairs / rows, 1) : 1;
    work->k = attr->dim;
    ret_cost->pointwise_flops = attr->no_relu ? 0 : (double)pairs * (double)attr->heads;
    topk_cost(view, ret_cost, scores);
    if (!attr->emit_scores) {
        ret_cost->workspace_bytes = dtype_bytes(DTYPE_FP32, MIN(rows, ROWS_PER_BLOCK) * sequences_longest(view->rows, ROWS_TOKENS));
    }
}

/* Only where the scores are an output: per pair and head the dot product again 2d, relu 1, dw 2, dR 1, dq and dk 4d. */
static void dsa_indexer_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const DsaIndexerAttr *attr = view->op->attr;
    if (!attr->emit_scores || !op_has_backward(view)) {
        return;
    }
    int64_t rows = op_rows(view, ROWS_TOKENS);
    int64_t pairs = sequences_causal_pairs(view->rows, ROWS_TOKENS, 0);
    double per_head = 6 * (double)attr->dim + (attr->no_relu ? 3 : 4);
    double flops = (double)attr->heads * ((double)pairs * per_head + 2 * (double)rows);
    int64_t inputs = op_in_bytes(view, 0) + op_in_bytes(view, 1) + op_in_bytes(view, 2);
    Work *work = op_cost_stream(ret_cost, WORK_GEMM_NN, flops, inputs + dtype_bytes(DTYPE_FP32, pairs), inputs);
    work->dtype = op_in(view, 0)->dtype;
    work->m = rows * attr->heads;
    work->n = attr->dim;
    work->k = rows > 0 ? MAX(pairs / rows, 1) : 1;
}

extern const OpClass op_dsa_indexer;
const OpClass op_dsa_indexer = {
    .id = "dsa_indexer",
    .title = "DSA indexer",
    .no_grad_outputs = 1,
    .saved = dsa_indexer_saved,
    .forward_cost = dsa_indexer_forward_cost,
    .backward_cost = dsa_indexer_backward_cost,
};
#endif
