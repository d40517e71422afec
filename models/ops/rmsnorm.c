#include "models/ops/rmsnorm.h"

#include <math.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"
#include "models/values.h"

REAL_DECLARE(rmsnorm_forward);
REAL_DECLARE(rmsnorm_backward);

/* The factor of number j: the weight, or 1 + it. */
static inline real weight_at(const RmsnormAttr *attr, const real *weight, int64_t j)
{
    return attr->zero_centered ? 1 + weight[j] : weight[j];
}

gboolean REAL_NAME(rmsnorm_forward)(const OpRun *run, GError **error)
{
    const RmsnormAttr *attr = run->view->op->attr;
    const real *weight = values_param(run, 0);
    real *inverses = values_aux(run, 0);
    int64_t width = attr->width;
    int64_t parts = tensor_numel(run->in[0]) / width;
    int64_t part_bytes = width * op_in_elem_bytes(run->view, 0);
    (void)error;
    for (int64_t p = 0; p < parts; p++) {
        const real *x = values_in(run, 0) + p * width;
        real *y = values_out(run, 0) + p * width;
        real sum = 0;
        for (int64_t j = 0; j < width; j++) {
            sum += x[j] * x[j];
        }
        real inverse = (real)(1 / sqrt((double)(sum / (real)width) + attr->eps));
        for (int64_t j = 0; j < width; j++) {
            y[j] = x[j] * inverse * weight_at(attr, weight, j);
        }
        if (inverses != NULL) {
            inverses[p] = inverse;
        }
        op_count_bytes(run, (double)(width * (attr->zero_centered ? 5 : 4) + 3), part_bytes, part_bytes + 4);
    }
    op_count_bytes(run, 0, op_weight_bytes(run->view, 0), 0);
    return TRUE;
}

/* dx = r (g - xhat mean(xhat g)) with g = dy w: kernels.md 1.1. */
static void input_gradient(const RmsnormAttr *attr, const real *xhat, const real *weight, const real *dy, real inverse,
                           real *dx)
{
    real sum = 0;
    for (int64_t j = 0; j < attr->width; j++) {
        dx[j] = dy[j] * weight_at(attr, weight, j);
        sum += xhat[j] * dx[j];
    }
    real mean = sum / (real)attr->width;
    for (int64_t j = 0; j < attr->width; j++) {
        dx[j] = inverse * (dx[j] - xhat[j] * mean);
    }
}

gboolean REAL_NAME(rmsnorm_backward)(const OpRun *run, GError **error)
{
    const RmsnormAttr *attr = run->view->op->attr;
    const real *weight = values_param(run, 0);
    const real *inverses = values_aux(run, 0);
    real *dweight = values_dparam(run, 0);
    int64_t width = attr->width;
    int64_t part_bytes = width * op_in_elem_bytes(run->view, 0);
    (void)error;
    if (run->dout[0] == NULL) {
        values_zero_gradients(run);
        return TRUE;
    }
    g_autofree real *xhat = g_new(real, (gsize)width);
    values_zero(dweight, width);
    for (int64_t p = 0; p < tensor_numel(run->in[0]) / width; p++) {
        const real *x = values_in(run, 0) + p * width;
        const real *dy = values_dout(run, 0) + p * width;
        for (int64_t j = 0; j < width; j++) {
            xhat[j] = x[j] * inverses[p];
        }
        op_count_bytes(run, (double)width, 2 * part_bytes + 4, 0);
        if (run->din[0] != NULL) {
            input_gradient(attr, xhat, weight, dy, inverses[p], values_din(run, 0) + p * width);
            op_count_bytes(run, (double)(width * (attr->zero_centered ? 7 : 6) + 1), 0, part_bytes);
        }
        for (int64_t j = 0; dweight != NULL && j < width; j++) {
            dweight[j] += dy[j] * xhat[j];
        }
        op_count_bytes(run, dweight != NULL ? 2 * (double)width : 0, 0, 0);
    }
    int64_t weight_bytes = op_weight_bytes(run->view, 0);
    op_count_bytes(run, 0, run->din[0] != NULL ? weight_bytes : 0, dweight != NULL ? weight_bytes : 0);
    return TRUE;
}

#if REAL_HAS_CLASS
int rmsnorm_add(Graph *graph, const char *name, int x, int64_t width, double eps, gboolean zero_centered)
{
    const GraphTensor in = *graph_tensor(graph, x);
    RmsnormAttr attr = {.width = width, .eps = eps, .zero_centered = zero_centered};
    g_assert(width > 0 && in.width % width == 0);
    int weight = graph_add_param(graph, op_name(name, "weight").text, PARAM_VECTOR, width, 0, 0);
    int y = graph_add_tensor(graph, name, in.rows, in.width, in.dtype);
    Op *op = op_add(graph, OP_rmsnorm, name, &attr, sizeof attr);
    op_input(op, x);
    op_param(graph, op, weight);
    op_output(graph, op, y);
    return y;
}

/* What sizes one run. */
typedef struct NormSize {
    double parts; /* normalised vectors */
    double width;
    int64_t stat_bytes; /* 1/rms of every part */
    double centered;    /* 1 if the weight is 1 + w */
} NormSize;

static NormSize norm_size(const OpView *view)
{
    const RmsnormAttr *attr = view->op->attr;
    int64_t parts = graph_tensor_numel(op_in(view, 0), view->rows) / attr->width;
    return (NormSize){(double)parts, (double)attr->width, dtype_bytes(DTYPE_FP32, parts), attr->zero_centered ? 1 : 0};
}

static void rmsnorm_saved(const OpView *view, OpSaved *ret_saved)
{
    const RmsnormAttr *attr = view->op->attr;
    if (!op_has_backward(view)) {
        return;
    }
    ret_saved->inputs = 1;
    op_saved_aux(ret_saved, op_in(view, 0)->rows, op_in(view, 0)->width / attr->width, DTYPE_FP32);
}

/* The framework's kernel takes dense rows: a part of a split is copied first. */
static void eager_dense_copy(const OpView *view, OpCost *ret_cost)
{
    gboolean eager;
    if (view->op->eager && op_in_maker(view, 0, &eager) == OP_split) {
        op_cost_stream(ret_cost, WORK_STRIDED, 0, op_in_bytes(view, 0), op_in_bytes(view, 0));
        ret_cost->workspace_bytes = op_in_bytes(view, 0);
    }
}

/* kernels.md 1.1: squares and their sum 2w, mean, eps and root 3, scaling by 1/rms and weight 2w. */
static void rmsnorm_forward_cost(const OpView *view, OpCost *ret_cost)
{
    NormSize s = norm_size(view);
    eager_dense_copy(view, ret_cost);
    double flops = s.parts * ((4 + s.centered) * s.width + 3);
    Work *work = op_cost_stream(ret_cost, WORK_NORM_FORWARD, flops, op_in_bytes(view, 0) + op_weight_bytes(view, 0),
                                op_out_bytes(view, 0) + s.stat_bytes);
    work->m = (int64_t)s.parts;
    work->n = (int64_t)s.width;
}

/*
 * Per number: the normed x 1; for dx: g = dy w 1 (+ 1 for 1 + w), mean of xhat g 2, r (g - xhat mean) 3; for dw: 2.
 * Eager: two kernels, each reads x and dy.
 */
static void rmsnorm_backward_cost(const OpView *view, OpCost *ret_cost)
{
    NormSize s = norm_size(view);
    gboolean dx = op_needs_input_grad(view, 0);
    gboolean dw = op_trains_param(view, 0);
    double dx_flops = s.parts * ((6 + s.centered) * s.width + 1);
    double norm_flops = s.parts * s.width;
    int64_t read = op_in_bytes(view, 0) + op_out_bytes(view, 0) + s.stat_bytes;
    int64_t weight = op_weight_bytes(view, 0);
    if (!dx && !dw) {
        return;
    }
    eager_dense_copy(view, ret_cost);
    if (!view->op->eager || !dw || !dx) {
        double flops = norm_flops + (dx ? dx_flops : 0) + (dw ? 2 * norm_flops : 0);
        op_cost_stream(ret_cost, dx ? WORK_NORM_BACKWARD : WORK_NORM_WEIGHT_GRAD, flops, read + (dx ? weight : 0),
                       (dx ? op_in_bytes(view, 0) : 0) + (dw ? weight : 0));
    } else {
        op_cost_stream(ret_cost, WORK_NORM_BACKWARD, norm_flops + dx_flops, read + weight, op_in_bytes(view, 0));
        op_cost_stream(ret_cost, WORK_NORM_WEIGHT_GRAD, 3 * norm_flops, read, weight);
    }
    for (int i = 0; i < ret_cost->n_works; i++) {
        ret_cost->works[i].m = (int64_t)s.parts;
        ret_cost->works[i].n = (int64_t)s.width;
    }
}

static gboolean rmsnorm_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        int64_t rows, heads, width;
        double eps;
        gboolean zero_centered, frozen, needs_grad;
    } samples[] = {
        {5, 1, 7, 1e-5, FALSE, FALSE, TRUE}, {1, 1, 1, 1e-2, FALSE, FALSE, TRUE}, {3, 4, 6, 1e-6, TRUE, FALSE, TRUE},
        {2, 2, 5, 1e-5, FALSE, TRUE, TRUE},  {4, 1, 3, 1e-5, TRUE, FALSE, FALSE},
    };
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->seq_len = samples[idx].rows;
    graph->freeze_base = samples[idx].frozen;
    int64_t width = samples[idx].heads * samples[idx].width;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, width, graph->compute, samples[idx].needs_grad);
    graph_add_output(graph,
                     rmsnorm_add(graph, "norm", x, samples[idx].width, samples[idx].eps, samples[idx].zero_centered));
    return TRUE;
}

extern const OpClass op_rmsnorm;
const OpClass op_rmsnorm = {
    .id = "rmsnorm",
    .title = "RMSNorm",
    .saved = rmsnorm_saved,
    .forward_cost = rmsnorm_forward_cost,
    .backward_cost = rmsnorm_backward_cost,
    .forward = REAL_KERNELS(rmsnorm_forward),
    .backward = REAL_KERNELS(rmsnorm_backward),
    .sample = rmsnorm_sample,
};
#endif
