#include "models/ops/l2norm.h"

#include <math.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"
#include "models/values.h"

REAL_DECLARE(l2norm_forward);
REAL_DECLARE(l2norm_backward);

gboolean REAL_NAME(l2norm_forward)(const OpRun *run, GError **error)
{
    const L2normAttr *attr = run->view->op->attr;
    real *inverses = values_aux(run, 0);
    int64_t width = attr->width;
    int64_t part_bytes = width * op_in_elem_bytes(run->view, 0);
    (void)error;
    for (int64_t p = 0; p < tensor_numel(run->in[0]) / width; p++) {
        const real *x = values_in(run, 0) + p * width;
        real *y = values_out(run, 0) + p * width;
        real sum = 0;
        for (int64_t j = 0; j < width; j++) {
            sum += x[j] * x[j];
        }
        real inverse = (real)(1 / sqrt((double)sum + attr->eps));
        for (int64_t j = 0; j < width; j++) {
            y[j] = x[j] * inverse;
        }
        if (inverses != NULL) {
            inverses[p] = inverse;
        }
        op_count_bytes(run, (double)(3 * width + 2), part_bytes, part_bytes + 4);
    }
    return TRUE;
}

/* dx = r (dy - y (y dy)): kernels.md 1.2. */
gboolean REAL_NAME(l2norm_backward)(const OpRun *run, GError **error)
{
    const L2normAttr *attr = run->view->op->attr;
    const real *inverses = values_aux(run, 0);
    int64_t width = attr->width;
    int64_t part_bytes = width * op_in_elem_bytes(run->view, 0);
    (void)error;
    if (run->dout[0] == NULL || run->din[0] == NULL) {
        values_zero_gradients(run);
        return TRUE;
    }
    g_autofree real *y = g_new(real, (gsize)width);
    for (int64_t p = 0; p < tensor_numel(run->in[0]) / width; p++) {
        const real *x = values_in(run, 0) + p * width;
        const real *dy = values_dout(run, 0) + p * width;
        real *dx = values_din(run, 0) + p * width;
        real product = 0;
        for (int64_t j = 0; j < width; j++) {
            y[j] = x[j] * inverses[p];
            product += y[j] * dy[j];
        }
        for (int64_t j = 0; j < width; j++) {
            dx[j] = inverses[p] * (dy[j] - y[j] * product);
        }
        op_count_bytes(run, 6 * (double)width, 2 * part_bytes + 4, part_bytes);
    }
    return TRUE;
}

#if REAL_HAS_CLASS
int l2norm_add(Graph *graph, const char *name, int x, int64_t width, double eps)
{
    const GraphTensor in = *graph_tensor(graph, x);
    L2normAttr attr = {.width = width, .eps = eps};
    g_assert(width > 0 && in.width % width == 0);
    int y = graph_add_tensor(graph, name, in.rows, in.width, in.dtype);
    Op *op = op_add(graph, OP_l2norm, name, &attr, sizeof attr);
    op_input(op, x);
    op_output(graph, op, y);
    return y;
}

static int64_t l2norm_parts(const OpView *view)
{
    const L2normAttr *attr = view->op->attr;
    return graph_tensor_numel(op_in(view, 0), view->rows) / attr->width;
}

static void l2norm_saved(const OpView *view, OpSaved *ret_saved)
{
    const L2normAttr *attr = view->op->attr;
    Dtype dtype = view->op->eager ? op_in(view, 0)->dtype : DTYPE_FP32;
    if (!op_has_backward(view)) {
        return;
    }
    ret_saved->inputs = 1;
    op_saved_aux(ret_saved, op_in(view, 0)->rows, op_in(view, 0)->width / attr->width, dtype);
}

/* x * rsqrt((x * x).sum(-1) + eps) */
static void eager_forward_cost(const OpView *view, OpCost *ret_cost)
{
    double n = (double)graph_tensor_numel(op_in(view, 0), view->rows);
    double parts = (double)l2norm_parts(view);
    int64_t full = op_in_bytes(view, 0);
    int64_t small = op_in_elem_bytes(view, 0) * l2norm_parts(view);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, n, 2 * full, full);
    op_cost_stream(ret_cost, WORK_REDUCE, n, full, small);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, parts, small, small);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, parts, small, small);
    op_cost_stream(ret_cost, WORK_STRIDED, n, full + small, full);
    ret_cost->workspace_bytes = full + small;
}

/*
 * Product: dy r, and dy x summed per part; root: dr * r^3 * -0.5; sum: broadcast; square: twice times x, and their
 * sum; the two gradients of x are added.
 */
static void eager_backward_cost(const OpView *view, OpCost *ret_cost)
{
    double n = (double)graph_tensor_numel(op_in(view, 0), view->rows);
    double parts = (double)l2norm_parts(view);
    int64_t full = op_in_bytes(view, 0);
    int64_t small = op_in_elem_bytes(view, 0) * l2norm_parts(view);
    op_cost_stream(ret_cost, WORK_STRIDED, n, full + small, full);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, n, 2 * full, full);
    op_cost_stream(ret_cost, WORK_REDUCE, n, full, small);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, parts, small, small)->n_launches = 2;
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, parts, 2 * small, small);
    op_cost_stream(ret_cost, WORK_STRIDED, n, full + small, full)->n_launches = 2;
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, n, 2 * full, full)->n_launches = 2;
    ret_cost->workspace_bytes = 2 * full + 2 * small;
}

/* kernels.md 1.2: squares and their sum 2w, eps and root 2, scaling w. */
static void l2norm_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const L2normAttr *attr = view->op->attr;
    if (view->op->eager) {
        eager_forward_cost(view, ret_cost);
        return;
    }
    int64_t parts = l2norm_parts(view);
    double flops = (double)parts * (3 * (double)attr->width + 2);
    Work *work = op_cost_stream(ret_cost, WORK_NORM_FORWARD, flops, op_in_bytes(view, 0),
                                op_out_bytes(view, 0) + dtype_bytes(DTYPE_FP32, parts));
    work->m = parts;
    work->n = attr->width;
}

/* Per number: y = x r 1, its product with dy 2, r (dy - y product) 3. */
static void l2norm_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const L2normAttr *attr = view->op->attr;
    if (!op_needs_input_grad(view, 0)) {
        return;
    }
    if (view->op->eager) {
        eager_backward_cost(view, ret_cost);
        return;
    }
    int64_t parts = l2norm_parts(view);
    double flops = 6 * (double)parts * (double)attr->width;
    int64_t read = op_in_bytes(view, 0) + op_out_bytes(view, 0) + dtype_bytes(DTYPE_FP32, parts);
    Work *work = op_cost_stream(ret_cost, WORK_NORM_BACKWARD, flops, read, op_in_bytes(view, 0));
    work->m = parts;
    work->n = attr->width;
}

static gboolean l2norm_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        int64_t rows, heads, width;
        double eps;
    } samples[] = {{5, 2, 7, 1e-6}, {1, 1, 1, 1e-1}, {3, 1, 4, 1e-6}};
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->seq_len = samples[idx].rows;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, samples[idx].heads * samples[idx].width, graph->compute, TRUE);
    graph_add_output(graph, l2norm_add(graph, "norm", x, samples[idx].width, samples[idx].eps));
    return TRUE;
}

extern const OpClass op_l2norm;
const OpClass op_l2norm = {
    .id = "l2norm",
    .title = "L2 norm",
    .saved = l2norm_saved,
    .forward_cost = l2norm_forward_cost,
    .backward_cost = l2norm_backward_cost,
    .forward = REAL_KERNELS(l2norm_forward),
    .backward = REAL_KERNELS(l2norm_backward),
    .sample = l2norm_sample,
};
#endif
