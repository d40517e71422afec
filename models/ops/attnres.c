#include "models/ops/attnres.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

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
    int64_t scores = dtype_bytes(op_wide_dtype(view->graph), n * rows), sum = dtype_bytes(op_wide_dtype(view->graph), rows * h);
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
    int64_t scores = dtype_bytes(op_wide_dtype(view->graph), n * rows), sum = dtype_bytes(op_wide_dtype(view->graph), rows * h);
    double elems = (double)(n * rows * h);
    op_cost_stream(cost, WORK_COPY, 0, op_out_bytes(view, 0), sum);
    op_cost_stream(cost, WORK_REDUCE, 2 * elems, full + sum, scores);
    op_cost_stream(cost, WORK_ELEMENTWISE, elems, sum + scores, full);
    op_cost_stream(cost, WORK_SOFTMAX, 4.0 * (double)(n * rows), 2 * scores, scores);
    op_cost_stream(cost, WORK_ELEMENTWISE, elems, scores, full);
    if (op_trains_param(view, 0) || op_trains_param(view, 1)) {
        op_cost_stream(cost, WORK_REDUCE, 2 * elems, full + scores, dtype_bytes(op_wide_dtype(view->graph), h));
        op_cost_stream(cost, WORK_ELEMENTWISE, (double)h, dtype_bytes(op_wide_dtype(view->graph), 2 * h), dtype_bytes(op_wide_dtype(view->graph), h))->n_launches = 2;
    }
    op_cost_stream(cost, WORK_ELEMENTWISE, elems, full + scores, full);     /* keys to sources */
    op_cost_stream(cost, WORK_ELEMENTWISE, elems, 2 * full, full);          /* keys to norms */
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
                   (double)rows * (9.0 * (double)n + 5.0 * (double)n_grads + (trains ? (double)n : 0)) +
                   (double)h * (1 + (double)n_trained);
    Work *work = op_cost_stream(ret_cost, WORK_ATTNRES_BACKWARD, flops,
                                (n + 1) * row_bytes + 2 * vector + dtype_bytes(op_wide_dtype(view->graph), 2 * n * rows),
                                n_grads * row_bytes + n_trained * vector);
    work->m = rows;
    work->n = h;
    work->k = n;
    ret_cost->workspace_bytes = trains ? dtype_bytes(op_wide_dtype(view->graph), rows * h) : 0;
}

extern const OpClass op_attnres;
const OpClass op_attnres = {
    .id = "attnres",
    .title = "AttnRes mix",
    .saved = attnres_saved,
    .forward_cost = attnres_forward_cost,
    .backward_cost = attnres_backward_cost,
};
#endif
