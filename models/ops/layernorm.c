#include "models/ops/layernorm.h"

#include <math.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"
#include "models/values.h"

REAL_DECLARE(layernorm_forward);
REAL_DECLARE(layernorm_backward);

enum { AUX_MEAN, AUX_INVERSE };

gboolean REAL_NAME(layernorm_forward)(const OpRun *run, GError **error)
{
    const LayernormAttr *attr = run->view->op->attr;
    const real *weight = values_param(run, 0);
    const real *bias = values_param(run, 1);
    int64_t width = op_in(run->view, 0)->width;
    int64_t row_bytes = width * op_in_elem_bytes(run->view, 0);
    (void)error;
    for (int64_t t = 0; t < values_rows(run, 0); t++) {
        const real *x = values_in(run, 0) + t * width;
        real *y = values_out(run, 0) + t * width;
        real sum = 0;
        real squares = 0;
        for (int64_t j = 0; j < width; j++) {
            sum += x[j];
        }
        real mean = sum / (real)width;
        for (int64_t j = 0; j < width; j++) {
            y[j] = x[j] - mean;
            squares += y[j] * y[j];
        }
        real inverse = (real)(1 / sqrt((double)(squares / (real)width) + attr->eps));
        for (int64_t j = 0; j < width; j++) {
            y[j] = y[j] * inverse * weight[j] + bias[j];
        }
        if (run->aux[AUX_MEAN] != NULL) {
            values_aux(run, AUX_MEAN)[t] = mean;
            values_aux(run, AUX_INVERSE)[t] = inverse;
        }
        op_count_bytes(run, (double)(7 * width + 4), row_bytes, row_bytes + 8);
    }
    op_count_bytes(run, 0, op_weight_bytes(run->view, 0) + op_weight_bytes(run->view, 1), 0);
    return TRUE;
}

/* dx = r (g - mean(g) - xhat mean(xhat g)) with g = dy w. */
static void input_gradient(int64_t width, const real *xhat, const real *weight, const real *dy, real inverse, real *dx)
{
    real sum = 0;
    real product = 0;
    for (int64_t j = 0; j < width; j++) {
        dx[j] = dy[j] * weight[j];
        sum += dx[j];
        product += dx[j] * xhat[j];
    }
    real mean = sum / (real)width;
    real mean_product = product / (real)width;
    for (int64_t j = 0; j < width; j++) {
        dx[j] = inverse * (dx[j] - mean - xhat[j] * mean_product);
    }
}

static void add_weight_gradients(const OpRun *run, const real *xhat, const real *dy)
{
    real *dweight = values_dparam(run, 0);
    real *dbias = values_dparam(run, 1);
    int64_t width = op_in(run->view, 0)->width;
    for (int64_t j = 0; j < width; j++) {
        if (dweight != NULL) {
            dweight[j] += dy[j] * xhat[j];
        }
        if (dbias != NULL) {
            dbias[j] += dy[j];
        }
    }
    op_count_bytes(run, 3 * (double)width, 0, 0);
}

gboolean REAL_NAME(layernorm_backward)(const OpRun *run, GError **error)
{
    int64_t width = op_in(run->view, 0)->width;
    int64_t row_bytes = width * op_in_elem_bytes(run->view, 0);
    int64_t weight_bytes = op_weight_bytes(run->view, 0);
    gboolean trains = run->dparam[0] != NULL || run->dparam[1] != NULL;
    (void)error;
    values_zero_gradients(run);
    if (run->dout[0] == NULL) {
        return TRUE;
    }
    g_autofree real *xhat = g_new(real, (gsize)width);
    for (int64_t t = 0; t < values_rows(run, 0); t++) {
        const real *x = values_in(run, 0) + t * width;
        const real *dy = values_dout(run, 0) + t * width;
        real mean = values_aux(run, AUX_MEAN)[t];
        real inverse = values_aux(run, AUX_INVERSE)[t];
        for (int64_t j = 0; j < width; j++) {
            xhat[j] = (x[j] - mean) * inverse;
        }
        op_count_bytes(run, 2 * (double)width, 2 * row_bytes + 8, 0);
        if (run->din[0] != NULL) {
            input_gradient(width, xhat, values_param(run, 0), dy, inverse, values_din(run, 0) + t * width);
            op_count_bytes(run, 8 * (double)width + 2, 0, row_bytes);
        }
        if (trains) {
            add_weight_gradients(run, xhat, dy);
        }
    }
    op_count_bytes(run, 0, run->din[0] != NULL ? weight_bytes : 0, trains ? 2 * weight_bytes : 0);
    return TRUE;
}

#if REAL_HAS_CLASS
int layernorm_add(Graph *graph, const char *name, int x, double eps)
{
    const GraphTensor in = *graph_tensor(graph, x);
    LayernormAttr attr = {.eps = eps};
    int weight = graph_add_param(graph, op_name(name, "weight").text, PARAM_VECTOR, in.width, 0, 0);
    int bias = graph_add_param(graph, op_name(name, "bias").text, PARAM_VECTOR, in.width, 0, 0);
    int y = graph_add_tensor(graph, name, in.rows, in.width, in.dtype);
    Op *op = op_add(graph, OP_layernorm, name, &attr, sizeof attr);
    op_input(op, x);
    op_param(graph, op, weight);
    op_param(graph, op, bias);
    op_output(graph, op, y);
    return y;
}

static void layernorm_saved(const OpView *view, OpSaved *ret_saved)
{
    if (!op_has_backward(view)) {
        return;
    }
    ret_saved->inputs = 1;
    op_saved_aux(ret_saved, op_in(view, 0)->rows, 1, DTYPE_FP32); /* mean */
    op_saved_aux(ret_saved, op_in(view, 0)->rows, 1, DTYPE_FP32); /* 1 / deviation */
}

/* Sum w, mean 1; x - mean w, squares and their sum 2w, mean, eps and root 3; scaling 2w, bias w. */
static void layernorm_forward_cost(const OpView *view, OpCost *ret_cost)
{
    int64_t rows = op_rows(view, op_in(view, 0)->rows);
    int64_t width = op_in(view, 0)->width;
    int64_t stats = dtype_bytes(DTYPE_FP32, 2 * rows);
    int64_t weights = op_weight_bytes(view, 0) + op_weight_bytes(view, 1);
    double flops = (double)rows * (7 * (double)width + 4);
    Work *work = op_cost_stream(ret_cost, WORK_NORM_FORWARD, flops, op_in_bytes(view, 0) + weights,
                                op_out_bytes(view, 0) + stats);
    work->m = rows;
    work->n = width;
}

/*
 * Per number: the normed x 2; for dx: g = dy w 1, the means of g and xhat g 3, r (g - mean - xhat mean) 4 and 2 per
 * row; for the weights 3.
 */
static void layernorm_backward_cost(const OpView *view, OpCost *ret_cost)
{
    int64_t rows = op_rows(view, op_in(view, 0)->rows);
    int64_t width = op_in(view, 0)->width;
    gboolean dx = op_needs_input_grad(view, 0);
    gboolean dw = op_trains_param(view, 0) || op_trains_param(view, 1);
    double n = (double)rows * (double)width;
    double dx_flops = 8 * n + 2 * (double)rows;
    int64_t read = op_in_bytes(view, 0) + op_out_bytes(view, 0) + dtype_bytes(DTYPE_FP32, 2 * rows);
    int64_t weight = op_weight_bytes(view, 0);
    if (dx && dw && view->op->eager) {
        op_cost_stream(ret_cost, WORK_NORM_BACKWARD, 2 * n + dx_flops, read + weight, op_in_bytes(view, 0));
        op_cost_stream(ret_cost, WORK_NORM_WEIGHT_GRAD, 5 * n, read, 2 * weight);
    } else if (dx || dw) {
        op_cost_stream(ret_cost, dx ? WORK_NORM_BACKWARD : WORK_NORM_WEIGHT_GRAD,
                       2 * n + (dx ? dx_flops : 0) + (dw ? 3 * n : 0), read + (dx ? weight : 0),
                       (dx ? op_in_bytes(view, 0) : 0) + (dw ? 2 * weight : 0));
    }
    for (int i = 0; i < ret_cost->n_works; i++) {
        ret_cost->works[i].m = rows;
        ret_cost->works[i].n = width;
    }
}

static gboolean layernorm_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        int64_t rows, width;
        double eps;
        gboolean frozen, needs_grad;
    } samples[] = {
        {5, 7, 1e-5, FALSE, TRUE}, {1, 2, 1e-2, FALSE, TRUE}, {4, 9, 1e-6, TRUE, TRUE}, {3, 4, 1e-5, FALSE, FALSE}};
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->seq_len = samples[idx].rows;
    graph->freeze_base = samples[idx].frozen;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, samples[idx].width, graph->compute, samples[idx].needs_grad);
    graph_add_output(graph, layernorm_add(graph, "norm", x, samples[idx].eps));
    return TRUE;
}

extern const OpClass op_layernorm;
const OpClass op_layernorm = {
    .id = "layernorm",
    .title = "LayerNorm",
    .saved = layernorm_saved,
    .forward_cost = layernorm_forward_cost,
    .backward_cost = layernorm_backward_cost,
    .forward = REAL_KERNELS(layernorm_forward),
    .backward = REAL_KERNELS(layernorm_backward),
    .sample = layernorm_sample,
};
#endif
