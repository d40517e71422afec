#include "models/ops/attnres.h"

#include <string.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/real-math.h"
#include "models/real.h"

REAL_DECLARE(attnres_forward);
REAL_DECLARE(attnres_backward);

/* c = w gamma, what both passes score with; free with g_free. */
static real *attnres_query(const OpRun *run, int64_t width)
{
    const real *w = real_data_const(run->param[0]), *gamma = real_data_const(run->param[1]);
    real *c = g_new(real, (gsize)width);
    for (int64_t d = 0; d < width; d++) {
        c[d] = w[d] * gamma[d];
    }
    return c;
}

/* Softmax of n scores. */
static void attnres_weights(const real *scores, int64_t n, real *ret_alpha)
{
    real max = scores[0], sum = 0;
    for (int64_t i = 1; i < n; i++) {
        max = real_max(max, scores[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        ret_alpha[i] = real_exp(scores[i] - max);
        sum += ret_alpha[i];
    }
    for (int64_t i = 0; i < n; i++) {
        ret_alpha[i] /= sum;
    }
}

enum { AUX_SCORES, AUX_NORMS, AUX_STACK, AUX_KEYS }; /* eager: weights instead of scores */

/* Row t of source i: the source itself, or what a chain has kept of it. */
static const real *attnres_source(const OpRun *run, int64_t i, int64_t t)
{
    int64_t n = run->view->op->n_inputs, width = op_in(run->view, 0)->width;
    return run->in[i] != NULL ? real_data_const(run->in[i]) + t * width
                              : real_data_const(run->aux[AUX_STACK]) + (t * n + i) * width;
}

/* What a chain keeps of row t: weights, the sources one behind the other, and those scaled to norm one. */
static void attnres_keep(const OpRun *run, int64_t t, const real *alpha)
{
    int64_t n = run->view->op->n_inputs, width = op_in(run->view, 0)->width;
    const real *norms = real_data_const(run->aux[AUX_NORMS]) + t * n;
    memcpy(real_data(run->aux[AUX_SCORES]) + t * n, alpha, (size_t)n * sizeof *alpha);
    for (int64_t i = 0; i < n; i++) {
        const real *v = real_data_const(run->in[i]) + t * width;
        real *stack = real_data(run->aux[AUX_STACK]) + (t * n + i) * width;
        real *keys = real_data(run->aux[AUX_KEYS]) + (t * n + i) * width;
        for (int64_t d = 0; d < width; d++) {
            stack[d] = v[d];
            keys[d] = v[d] * norms[i];
        }
    }
}

/* Weights and scores of row t as backward has them. */
static void attnres_kept(const OpRun *run, int64_t t, const real *c, real *ret_alpha, real *ret_scores)
{
    int64_t n = run->view->op->n_inputs, width = op_in(run->view, 0)->width;
    const real *kept = real_data_const(run->aux[AUX_SCORES]) + t * n;
    if (run->aux[AUX_KEYS] == NULL) {
        memcpy(ret_scores, kept, (size_t)n * sizeof *kept);
        attnres_weights(kept, n, ret_alpha);
        return;
    }
    memcpy(ret_alpha, kept, (size_t)n * sizeof *kept);
    for (int64_t i = 0; i < n; i++) {
        const real *keys = real_data_const(run->aux[AUX_KEYS]) + (t * n + i) * width;
        ret_scores[i] = 0;
        for (int64_t d = 0; d < width; d++) {
            ret_scores[i] += c[d] * keys[d];
        }
    }
}

/* FLOPs of attnres_weights(): maximum, difference, exponential, sum, quotient per score. */
#define ATTNRES_WEIGHT_FLOPS 5.0

gboolean REAL_NAME(attnres_forward)(const OpRun *run, GError **error)
{
    (void)error;
    const AttnresAttr *attr = run->view->op->attr;
    int64_t n = run->view->op->n_inputs, width = op_in(run->view, 0)->width, rows = tensor_numel(run->out[0]) / width;
    g_autofree real *c = attnres_query(run, width);
    for (int64_t t = 0; t < rows; t++) {
        real alpha[ATTNRES_SOURCES_MAX];
        real *scores = real_data(run->aux[0]) + t * n, *norms = real_data(run->aux[1]) + t * n;
        real *y = real_data(run->out[0]) + t * width;
        for (int64_t i = 0; i < n; i++) {
            const real *v = real_data_const(run->in[i]) + t * width;
            real squares = 0, dot = 0;
            for (int64_t d = 0; d < width; d++) {
                squares += v[d] * v[d];
                dot += c[d] * v[d];
            }
            norms[i] = 1 / real_sqrt(squares / (real)width + (real)attr->eps);
            scores[i] = dot * norms[i];
        }
        attnres_weights(scores, n, alpha);
        memset(y, 0, (size_t)width * sizeof *y);
        for (int64_t i = 0; i < n; i++) {
            const real *v = real_data_const(run->in[i]) + t * width;
            for (int64_t d = 0; d < width; d++) {
                y[d] += alpha[i] * v[d];
            }
        }
        if (run->aux[AUX_KEYS] != NULL) {
            attnres_keep(run, t, alpha);
        }
    }
    double flops = (double)(rows * n) * (6.0 * (double)width + 4 + ATTNRES_WEIGHT_FLOPS) + (double)width;
    op_count(run, flops, n * rows * width + 2 * width, rows * width + 2 * n * rows);
    return TRUE;
}

/* ds of one row: alpha (dalpha - sum alpha dalpha), dalpha = dy V. */
static void attnres_score_gradients(const OpRun *run, int64_t t, const real *dy, const real *alpha, real *ret_ds)
{
    int64_t n = run->view->op->n_inputs, width = op_in(run->view, 0)->width;
    real mean = 0;
    for (int64_t i = 0; i < n; i++) {
        const real *v = attnres_source(run, i, t);
        ret_ds[i] = 0;
        for (int64_t d = 0; d < width; d++) {
            ret_ds[i] += dy[d] * v[d];
        }
        mean += alpha[i] * ret_ds[i];
    }
    for (int64_t i = 0; i < n; i++) {
        ret_ds[i] = alpha[i] * (ret_ds[i] - mean);
    }
}

/* dV_i = alpha dy + ds r c - (ds r^2 s / h) V_i, and dc += ds r V_i, for one row. dc may be NULL. */
static void attnres_row_backward(const OpRun *run, int64_t t, const real *c, real *dc)
{
    int64_t n = run->view->op->n_inputs, width = op_in(run->view, 0)->width;
    const real *norms = real_data_const(run->aux[AUX_NORMS]) + t * n;
    const real *dy = real_data_const(run->dout[0]) + t * width;
    real alpha[ATTNRES_SOURCES_MAX], ds[ATTNRES_SOURCES_MAX], scores[ATTNRES_SOURCES_MAX];
    attnres_kept(run, t, c, alpha, scores);
    attnres_score_gradients(run, t, dy, alpha, ds);
    for (int64_t i = 0; i < n; i++) {
        const real *v = attnres_source(run, i, t);
        real to_query = ds[i] * norms[i];
        for (int64_t d = 0; dc != NULL && d < width; d++) {
            dc[d] += to_query * v[d];
        }
        if (run->din[i] == NULL) {
            continue;
        }
        real *dv = real_data(run->din[i]) + t * width;
        real to_self = to_query * norms[i] * scores[i] / (real)width;
        for (int64_t d = 0; d < width; d++) {
            dv[d] = alpha[i] * dy[d] + to_query * c[d] - to_self * v[d];
        }
    }
}

static void attnres_count_backward(const OpRun *run, int64_t n_grads)
{
    int64_t n = run->view->op->n_inputs, width = op_in(run->view, 0)->width;
    int64_t rows = op_rows(run->view, op_in(run->view, 0)->rows);
    int64_t n_trained = (run->dparam[0] != NULL ? 1 : 0) + (run->dparam[1] != NULL ? 1 : 0);
    double per_row = (double)n * (2.0 * (double)width + ATTNRES_WEIGHT_FLOPS + 4 + 1);
    per_row += (double)n_grads * (5.0 * (double)width + 3) + (n_trained > 0 ? 2.0 * (double)(n * width) : 0);
    op_count(run, (double)rows * per_row + (double)(width * (1 + n_trained)),
             (n + 1) * rows * width + 2 * width + 2 * n * rows, n_grads * rows * width + n_trained * width);
}

gboolean REAL_NAME(attnres_backward)(const OpRun *run, GError **error)
{
    (void)error;
    int64_t n = run->view->op->n_inputs, width = op_in(run->view, 0)->width, n_grads = 0;
    int64_t rows = op_rows(run->view, op_in(run->view, 0)->rows);
    g_autofree real *c = attnres_query(run, width);
    g_autofree real *dc = run->dparam[0] != NULL || run->dparam[1] != NULL ? g_new0(real, (gsize)width) : NULL;
    for (int64_t i = 0; i < n; i++) {
        if (run->din[i] != NULL) {
            n_grads++;
            memset(run->din[i]->data, 0, (size_t)tensor_numel(run->din[i]) * sizeof(real));
        }
    }
    for (int64_t t = 0; run->dout[0] != NULL && t < rows; t++) {
        attnres_row_backward(run, t, c, dc);
    }
    for (int p = 0; p < 2; p++) { /* each of w and gamma meets the other */
        const real *other = real_data_const(run->param[1 - p]);
        real *dparam = real_data(run->dparam[p]);
        for (int64_t d = 0; dparam != NULL && d < width; d++) {
            dparam[d] = dc[d] * other[d];
        }
    }
    attnres_count_backward(run, n_grads);
    return TRUE;
}

#if REAL_HAS_CLASS
int attnres_add(Graph *graph, const char *proj, const char *norm, const int *sources, int n, double eps)
{
    AttnresAttr attr = {eps};
    char name[GRAPH_NAME_MAX];
    g_assert(n >= 1 && n <= ATTNRES_SOURCES_MAX);
    GraphTensor in = *graph_tensor(graph, sources[0]);
    g_snprintf(name, sizeof name, "%s.weight", proj);
    int query = graph_add_param(graph, name, PARAM_VECTOR, 1, in.width, 0);
    g_snprintf(name, sizeof name, "%s.weight", norm);
    int key_norm = graph_add_param(graph, name, PARAM_VECTOR, in.width, 0, 0);
    int y = graph_add_tensor(graph, proj, in.rows, in.width, graph->compute);
    Op *op = op_add(graph, OP_attnres, proj, &attr, sizeof attr);
    for (int i = 0; i < n; i++) {
        op_input(op, sources[i]);
    }
    op_param(graph, op, query);
    op_param(graph, op, key_norm);
    op_output(graph, op, y);
    return y;
}

/*
 * Fused: scores and reciprocal norms of every source (the weights follow from the scores). Eager: the stacked sources
 * in fp32, their normed copy, norms and weights. The sources themselves are kept by reference when fused.
 */
static void attnres_saved(const OpView *view, OpSaved *ret_saved)
{
    int64_t n = view->op->n_inputs;
    const GraphTensor *x = op_in(view, 0);
    *ret_saved = (OpSaved){.inputs = view->op->eager ? 0 : (guint32)((1u << n) - 1)};
    op_saved_aux(ret_saved, x->rows, n, op_wide_dtype(view->graph));
    op_saved_aux(ret_saved, x->rows, n, op_wide_dtype(view->graph));
    if (view->op->eager) {
        op_saved_aux(ret_saved, x->rows, n * x->width, op_wide_dtype(view->graph));
        op_saved_aux(ret_saved, x->rows, n * x->width, op_wide_dtype(view->graph));
    }
}

/* The chain: stack, cast, mean of squares, scaled keys, scores, softmax, weighted sum, cast. */
static void attnres_forward_eager(const OpView *view, OpCost *cost)
{
    int64_t n = view->op->n_inputs, rows = op_rows(view, op_in(view, 0)->rows), h = op_in(view, 0)->width;
    int64_t stack = n * op_in_bytes(view, 0), full = dtype_bytes(op_wide_dtype(view->graph), n * rows * h);
    int64_t scores = dtype_bytes(op_wide_dtype(view->graph), n * rows),
            sum = dtype_bytes(op_wide_dtype(view->graph), rows * h);
    double elems = (double)(n * rows * h);
    op_cost_stream(cost, WORK_COPY, 0, stack, stack);
    op_cost_stream(cost, WORK_COPY, 0, stack, full);
    op_cost_stream(cost, WORK_ELEMENTWISE, elems, full, full);
    op_cost_stream(cost, WORK_REDUCE, elems, full, scores);
    op_cost_stream(cost, WORK_ELEMENTWISE, 2.0 * (double)(n * rows), scores, scores)->n_launches = 2;
    op_cost_stream(cost, WORK_ELEMENTWISE, elems, full + scores, full);
    op_cost_stream(cost, WORK_REDUCE, 2 * elems, full, scores);
    op_cost_stream(cost, WORK_SOFTMAX, 5.0 * (double)(n * rows), scores, scores);
    op_cost_stream(cost, WORK_REDUCE, 2 * elems, full + scores, sum);
    op_cost_stream(cost, WORK_COPY, 0, sum, op_out_bytes(view, 0));
    cost->workspace_bytes = sum;
}

/* Host time of one call of the fused library kernel, in operators: op_attnres.csv, 4 sources, where the device waits.
 */
enum { ATTNRES_HOST_FORWARD = 8, ATTNRES_HOST_BACKWARD = 18 };

/* kernels.md 6.1: squares 2, dot product 2, weighted sum 2 per element and source; 9 per score; w times gamma once. */
static void attnres_forward_cost(const OpView *view, OpCost *ret_cost)
{
    int64_t n = view->op->n_inputs, rows = op_rows(view, op_in(view, 0)->rows), h = op_in(view, 0)->width;
    *ret_cost = (OpCost){0};
    if (view->op->eager) {
        attnres_forward_eager(view, ret_cost);
        return;
    }
    int64_t vectors = dtype_bytes(op_in(view, 0)->dtype, 2 * h);
    double flops = 6.0 * (double)(n * rows * h) + 9.0 * (double)(n * rows) + (double)h;
    Work *work = op_cost_stream(ret_cost, WORK_ATTNRES_FORWARD, flops, n * op_in_bytes(view, 0) + vectors,
                                op_out_bytes(view, 0) + dtype_bytes(op_wide_dtype(view->graph), 2 * n * rows));
    work->m = rows;
    work->n = h;
    work->k = n;
    ret_cost->n_host_ops = ATTNRES_HOST_FORWARD;
}

static int64_t attnres_n_grads(const OpView *view)
{
    int64_t n = 0;
    for (int i = 0; i < view->op->n_inputs; i++) {
        n += op_needs_input_grad(view, i) ? 1 : 0;
    }
    return n;
}

/* Autograd's chain, in the order of the forward chain reversed. */
static void attnres_backward_eager(const OpView *view, OpCost *cost)
{
    int64_t n = view->op->n_inputs, rows = op_rows(view, op_in(view, 0)->rows), h = op_in(view, 0)->width;
    int64_t stack = n * op_in_bytes(view, 0), full = dtype_bytes(op_wide_dtype(view->graph), n * rows * h);
    int64_t scores = dtype_bytes(op_wide_dtype(view->graph), n * rows),
            sum = dtype_bytes(op_wide_dtype(view->graph), rows * h);
    double elems = (double)(n * rows * h);
    op_cost_stream(cost, WORK_COPY, 0, op_out_bytes(view, 0), sum);
    op_cost_stream(cost, WORK_REDUCE, 2 * elems, full + sum, scores);
    op_cost_stream(cost, WORK_ELEMENTWISE, elems, sum + scores, full);
    op_cost_stream(cost, WORK_SOFTMAX, 4.0 * (double)(n * rows), 2 * scores, scores);
    op_cost_stream(cost, WORK_ELEMENTWISE, elems, scores, full);
    if (op_trains_param(view, 0) || op_trains_param(view, 1)) {
        op_cost_stream(cost, WORK_REDUCE, 2 * elems, full + scores, dtype_bytes(op_wide_dtype(view->graph), h));
        op_cost_stream(cost, WORK_ELEMENTWISE, (double)h, dtype_bytes(op_wide_dtype(view->graph), 2 * h),
                       dtype_bytes(op_wide_dtype(view->graph), h))
            ->n_launches = 2;
    }
    op_cost_stream(cost, WORK_ELEMENTWISE, elems, full + scores, full); /* keys to sources */
    op_cost_stream(cost, WORK_ELEMENTWISE, elems, 2 * full, full);      /* keys to norms */
    op_cost_stream(cost, WORK_REDUCE, elems, full, scores);
    op_cost_stream(cost, WORK_ELEMENTWISE, 3.0 * (double)(n * rows), 2 * scores, scores)->n_launches = 3;
    op_cost_stream(cost, WORK_ELEMENTWISE, elems, full, full)->n_launches = 2; /* V to the first power, times 2 */
    op_cost_stream(cost, WORK_ELEMENTWISE, elems, full + scores, full);
    op_cost_stream(cost, WORK_ELEMENTWISE, elems, 2 * full, full)->n_launches = 2; /* three paths meet */
    op_cost_stream(cost, WORK_COPY, 0, full, stack);
    /* Five fp32 stacks at once (sources, two gradients of them, keys' gradient, a product), less kept and gradients. */
    cost->workspace_bytes = 3 * full - stack;
}

/*
 * kernels.md 6.1. Per element and source: dot with dy 2, source gradient 5, query gradient 2. A fused kernel leaves
 * one fp32 row of query gradients per token for a reduction (measured: the peak of the library kernel).
 */
static void attnres_backward_cost(const OpView *view, OpCost *ret_cost)
{
    int64_t n = view->op->n_inputs, rows = op_rows(view, op_in(view, 0)->rows), h = op_in(view, 0)->width;
    int64_t n_grads = attnres_n_grads(view);
    gboolean trains = op_trains_param(view, 0) || op_trains_param(view, 1);
    *ret_cost = (OpCost){0};
    if (n_grads == 0 && !trains) {
        return;
    }
    if (view->op->eager) {
        attnres_backward_eager(view, ret_cost);
        return;
    }
    int64_t row_bytes = op_in_bytes(view, 0), vector = dtype_bytes(op_in(view, 0)->dtype, h);
    int64_t n_trained = op_trains_param(view, 0) + op_trains_param(view, 1);
    double elems = (double)(rows * h);
    double flops = elems * (2.0 * (double)n + 5.0 * (double)n_grads + (trains ? 2.0 * (double)n : 0)) +
                   (double)rows * (10.0 * (double)n + 3.0 * (double)n_grads) + (double)h * (1 + (double)n_trained);
    Work *work =
        op_cost_stream(ret_cost, WORK_ATTNRES_BACKWARD, flops,
                       (n + 1) * row_bytes + 2 * vector + dtype_bytes(op_wide_dtype(view->graph), 2 * n * rows),
                       n_grads * row_bytes + n_trained * vector);
    work->m = rows;
    work->n = h;
    work->k = n;
    ret_cost->n_host_ops = ATTNRES_HOST_BACKWARD;
    ret_cost->workspace_bytes = trains ? dtype_bytes(op_wide_dtype(view->graph), rows * h) : 0;
}

static gboolean attnres_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        int64_t rows, width;
        int n_sources;
    } samples[] = {{4, 6, 3}, {3, 5, 1}, {1, 8, 9}, {2, 7, 2}};
    int sources[ATTNRES_SOURCES_MAX];
    if (idx < 0 || idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    for (int i = 0; i < samples[idx].n_sources; i++) {
        char name[GRAPH_NAME_MAX];
        g_snprintf(name, sizeof name, "source%d", i);
        sources[i] = graph_add_input(graph, name, ROWS_TOKENS, samples[idx].width, graph->compute, TRUE);
    }
    graph_add_output(graph, attnres_add(graph, "res_proj", "res_norm", sources, samples[idx].n_sources, 1e-5));
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->rows[ROWS_SEQUENCES] = 1;
    rows->seq_len = samples[idx].rows;
    return TRUE;
}

extern const OpClass op_attnres;
const OpClass op_attnres = {
    .id = "attnres",
    .title = "AttnRes mix",
    .saved = attnres_saved,
    .forward_cost = attnres_forward_cost,
    .backward_cost = attnres_backward_cost,
    .forward = REAL_KERNELS(attnres_forward),
    .backward = REAL_KERNELS(attnres_backward),
    .sample = attnres_sample,
};
#endif
