#include "models/ops/dsa-indexer.h"

#include <math.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/ops/dsa-scores.h"
#include "models/ops/layernorm.h"
#include "models/ops/linear.h"
#include "models/ops/rope.h"
#include "models/real.h"
#include "models/sequences.h"
#include "models/values.h"
#include "sim/base/error.h"

REAL_DECLARE(dsa_indexer_forward);
REAL_DECLARE(dsa_indexer_backward);

enum { IN_Q, IN_K, IN_W, OUT_SEL = 0, OUT_SCORES };

/* Operations of a score: dot product, relu, times weight, sum (kernels.md 5.4). */
static double score_flops(const DsaIndexerAttr *attr)
{
    return (double)attr->heads * (2 * (double)attr->dim + (attr->no_relu ? 2 : 3));
}

/* Heap of the best scores so far, the worst of them at the root. Equal scores: the later index is the worse. */
static gboolean is_worse(const real *scores, int64_t a, int64_t b)
{
    return scores[a] < scores[b] || (!(scores[a] > scores[b]) && a > b);
}

static void heap_sink(const real *scores, int64_t *heap, int64_t n, int64_t at)
{
    for (int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && is_worse(scores, heap[child + 1], heap[child])) {
            child++;
        }
        if (!is_worse(scores, heap[child], heap[at])) {
            return;
        }
        int64_t worse = heap[child];
        heap[child] = heap[at];
        heap[at] = worse;
        at = child;
    }
}

/* Writes the indices of the top_k best of n scores, ascending, plus first; -1 where there are fewer. */
static void select_best(const real *scores, int64_t n, int64_t top_k, int64_t first, int64_t *heap, int64_t *sel)
{
    int64_t size = MIN(n, top_k);
    for (int64_t s = 0; s < size; s++) {
        heap[s] = s;
    }
    for (int64_t at = size / 2 - 1; at >= 0; at--) {
        heap_sink(scores, heap, size, at);
    }
    for (int64_t s = size; s < n; s++) {
        if (is_worse(scores, heap[0], s)) {
            heap[0] = s;
            heap_sink(scores, heap, size, 0);
        }
    }
    /* Taking the worst off again and again would sort by score; the order wanted is by index. */
    int64_t threshold = heap[0];
    int64_t n_written = 0;
    for (int64_t s = 0; s < n; s++) {
        if (s == threshold || is_worse(scores, threshold, s)) {
            sel[n_written++] = first + s;
        }
    }
    while (n_written < top_k) {
        sel[n_written++] = -1;
    }
}

/* Scores of token t against the n keys from `start` on; FALSE if one is not a number. */
static gboolean score_row(const OpRun *run, int64_t t, int64_t start, int64_t n, real *scores, real *scratch)
{
    const DsaIndexerAttr *attr = run->view->op->attr;
    real *weights = scratch;
    real *dots = scratch + attr->heads;
    gboolean ok = TRUE;
    index_weights(attr, values_in(run, IN_W) + t * attr->heads, weights);
    for (int64_t s = 0; s < n; s++) {
        index_dots(attr, values_in(run, IN_Q) + t * attr->heads * attr->dim,
                   values_in(run, IN_K) + (start + s) * attr->dim, dots);
        scores[s] = index_score(attr, dots, weights);
        ok = ok && !isnan(scores[s]);
        op_count_bytes(run, score_flops(attr), 0, run->out[OUT_SCORES] != NULL ? 0 : 4);
    }
    op_count_bytes(run, (double)attr->heads, 0, 0);
    return ok;
}

gboolean REAL_NAME(dsa_indexer_forward)(const OpRun *run, GError **error)
{
    const DsaIndexerAttr *attr = run->view->op->attr;
    const RowCounts *rows = run->view->rows;
    int64_t *sel = run->out[OUT_SEL]->data;
    real *kept = run->out[OUT_SCORES] != NULL ? values_out(run, OUT_SCORES) : NULL;
    int64_t longest = sequences_longest(rows, ROWS_TOKENS);
    g_autofree real *row = g_new(real, (gsize)longest + 1);
    g_autofree real *scratch = g_new(real, (gsize)(2 * attr->heads));
    g_autofree int64_t *heap = g_new(int64_t, (gsize)MIN(attr->top_k, longest) + 1);
    for (int64_t q = 0; q < sequences_count(rows, ROWS_TOKENS); q++) {
        int64_t start = sequences_start(rows, ROWS_TOKENS, q);
        int64_t end = sequences_start(rows, ROWS_TOKENS, q + 1);
        for (int64_t t = start; t < end; t++) {
            real *scores = kept != NULL ? kept + (t - start) * (end - start) : row;
            if (!score_row(run, t, start, t - start + 1, scores, scratch)) {
                g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                            "%s: a score of token %" G_GINT64_FORMAT " is not a number", run->view->op->name, t);
                return FALSE;
            }
            for (int64_t s = t - start + 1; kept != NULL && s < end - start; s++) {
                scores[s] = 0;
            }
            select_best(scores, t - start + 1, attr->top_k, start, heap, sel + t * attr->top_k);
            op_count_bytes(run, 0, 4 * (t - start + 1), 0);
        }
        if (kept != NULL) {
            kept += (end - start) * (end - start);
            op_count_bytes(run, 0, 0,
                           (end - start) * (end - start) * dtype_bytes(op_out(run->view, OUT_SCORES)->dtype, 1));
        }
    }
    op_count_bytes(run, 0, op_in_bytes(run->view, IN_Q) + op_in_bytes(run->view, IN_K) + op_in_bytes(run->view, IN_W),
                   op_out_bytes(run->view, OUT_SEL));
    return TRUE;
}

/* Gradients of the scores of token t; dscores are those of its sequence's keys. */
static void backward_row(const OpRun *run, int64_t t, int64_t start, const real *dscores, real *scratch)
{
    const DsaIndexerAttr *attr = run->view->op->attr;
    real *weights = scratch;
    real *dots = scratch + attr->heads;
    real *dweights = scratch + 2 * attr->heads;
    int64_t q_at = t * attr->heads * attr->dim;
    const real *q = values_in(run, IN_Q) + q_at;
    index_weights(attr, values_in(run, IN_W) + t * attr->heads, weights);
    values_zero(dweights, attr->heads);
    for (int64_t s = start; s <= t; s++) {
        const real *k = values_in(run, IN_K) + s * attr->dim;
        IndexGradient to = {values_din(run, IN_Q) + q_at, values_din(run, IN_K) + s * attr->dim, dweights};
        index_dots(attr, q, k, dots);
        index_score_gradient(attr, q, k, dots, weights, dscores[s - start], to);
        op_count_bytes(run, (double)attr->heads * (6 * (double)attr->dim + (attr->no_relu ? 3 : 4)), 4, 0);
    }
    index_weights(attr, dweights, values_din(run, IN_W) + t * attr->heads);
    op_count_bytes(run, 2 * (double)attr->heads, 0, 0);
}

/* Runs only where the scores are an output; all three gradients are made then. */
gboolean REAL_NAME(dsa_indexer_backward)(const OpRun *run, GError **error)
{
    const DsaIndexerAttr *attr = run->view->op->attr;
    const RowCounts *rows = run->view->rows;
    const real *dscores = values_dout(run, OUT_SCORES);
    (void)error;
    values_zero_gradients(run);
    if (dscores == NULL || run->din[IN_Q] == NULL || run->din[IN_K] == NULL || run->din[IN_W] == NULL) {
        return TRUE;
    }
    g_autofree real *scratch = g_new(real, (gsize)(3 * attr->heads));
    for (int64_t q = 0; q < sequences_count(rows, ROWS_TOKENS); q++) {
        int64_t start = sequences_start(rows, ROWS_TOKENS, q);
        int64_t length = sequences_start(rows, ROWS_TOKENS, q + 1) - start;
        for (int64_t t = start; t < start + length; t++) {
            backward_row(run, t, start, dscores + (t - start) * length, scratch);
        }
        dscores += length * length;
    }
    int64_t inputs = op_in_bytes(run->view, IN_Q) + op_in_bytes(run->view, IN_K) + op_in_bytes(run->view, IN_W);
    op_count_bytes(run, 0, inputs, inputs);
    return TRUE;
}

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

DsaIndexerTensors dsa_indexer_layer_add(Graph *graph, const char *prefix, int x, int cq, int positions,
                                        const DsaIndexerLayer *layer)
{
    int64_t heads = layer->select.heads;
    int64_t dim = layer->select.dim;
    int q = detached_linear_add(graph, op_name(prefix, "wq_b").text, cq, heads * dim);
    int k = detached_linear_add(graph, op_name(prefix, "wk").text, x, dim);
    k = layernorm_add(graph, op_name(prefix, "k_norm").text, k, layer->norm_eps);
    if (layer->rotary_dim > 0) {
        RopeAttr rope = {.heads = heads,
                         .head_dim = dim,
                         .rotary_dim = layer->rotary_dim,
                         .base = layer->rope_base,
                         .layout = ROPE_HALF};
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

static void topk_cost(const OpView *view, OpCost *ret_cost, int64_t read_bytes)
{
    const DsaIndexerAttr *attr = view->op->attr;
    Work *topk = op_cost_stream(ret_cost, WORK_TOPK, 0, read_bytes, op_out_bytes(view, 0));
    topk->m = op_rows(view, ROWS_TOKENS);
    topk->n = sequences_longest(view->rows, ROWS_TOKENS);
    topk->k = attr->top_k;
}

/* Scores of all heads as one product per sequence, then relu, weights, sum over heads and mask as kernels of their own.
 */
static void eager_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const DsaIndexerAttr *attr = view->op->attr;
    int64_t elem = op_in_elem_bytes(view, 0);
    int64_t longest = sequences_longest(view->rows, ROWS_TOKENS);
    int64_t pairs = sequences_all_pairs(view->rows, ROWS_TOKENS);
    int64_t cube = elem * pairs * attr->heads;
    double n = (double)pairs * (double)attr->heads;
    int64_t n_sequences = sequences_count(view->rows, ROWS_TOKENS);
    op_cost_gemm(ret_cost, WORK_GEMM_NT, op_in(view, 0)->dtype, longest * attr->heads, longest, attr->dim)->n_launches =
        (int)n_sequences;
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, (double)op_rows(view, ROWS_TOKENS) * (double)attr->heads,
                   op_in_bytes(view, 2), op_in_bytes(view, 2));
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
    Work *work =
        op_cost_stream(ret_cost, WORK_GEMM_NT, flops, read, attr->emit_scores ? op_out_bytes(view, 1) : scores);
    work->dtype = op_in(view, 0)->dtype;
    work->m = rows * attr->heads;
    work->n = rows > 0 ? MAX(pairs / rows, 1) : 1;
    work->k = attr->dim;
    ret_cost->pointwise_flops = attr->no_relu ? 0 : (double)pairs * (double)attr->heads;
    topk_cost(view, ret_cost, scores);
    if (!attr->emit_scores) {
        ret_cost->workspace_bytes =
            dtype_bytes(DTYPE_FP32, MIN(rows, ROWS_PER_BLOCK) * sequences_longest(view->rows, ROWS_TOKENS));
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

static const int64_t packed_starts[] = {0, 5, 6, 12};

static gboolean dsa_indexer_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        int64_t rows;
        gboolean packed;
        DsaIndexerAttr attr;
    } samples[] = {
        {7, FALSE, {2, 3, 3, 1, FALSE, TRUE}},
        {1, FALSE, {1, 1, 4, 0.5, FALSE, TRUE}},
        {12, TRUE, {3, 2, 2, 0.4, TRUE, TRUE}},
        {6, FALSE, {2, 4, 9, 0.3, FALSE, FALSE}},
    };
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    const DsaIndexerAttr *attr = &samples[idx].attr;
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->seq_len = samples[idx].rows;
    rows->rows[ROWS_SEQUENCES] = samples[idx].packed ? (int64_t)G_N_ELEMENTS(packed_starts) - 1 : 1;
    rows->doc_starts = samples[idx].packed ? packed_starts : NULL;
    rows->rows[ROWS_PAIRS] = sequences_all_pairs(rows, ROWS_TOKENS);
    int q = graph_add_input(graph, "q", ROWS_TOKENS, attr->heads * attr->dim, graph->compute, TRUE);
    int k = graph_add_input(graph, "k", ROWS_TOKENS, attr->dim, graph->compute, TRUE);
    int w = graph_add_input(graph, "w", ROWS_TOKENS, attr->heads, graph->compute, TRUE);
    DsaIndexerTensors t = dsa_indexer_add(graph, "indexer", q, k, w, attr);
    graph_add_output(graph, t.sel);
    if (t.scores >= 0) {
        graph_add_output(graph, t.scores);
    }
    return TRUE;
}

extern const OpClass op_dsa_indexer;
const OpClass op_dsa_indexer = {
    .id = "dsa_indexer",
    .title = "DSA indexer",
    .no_grad_outputs = 1,
    .saved = dsa_indexer_saved,
    .forward_cost = dsa_indexer_forward_cost,
    .backward_cost = dsa_indexer_backward_cost,
    .forward = REAL_KERNELS(dsa_indexer_forward),
    .backward = REAL_KERNELS(dsa_indexer_backward),
    .sample = dsa_indexer_sample,
};
#endif
