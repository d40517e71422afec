#include "models/ops/linear.h"

#include <string.h>

#include "models/fp8.h"
#include "models/matmul.h"
#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"
#include "models/values.h"

REAL_DECLARE(linear_forward);
REAL_DECLARE(linear_backward);

/* A product with dense operands, counted. */
static void product(const OpRun *run, Matmul shape, const real *a, const real *b, real *c)
{
    int64_t elem = op_in_elem_bytes(run->view, 0);
    REAL_NAME(matmul_dense)(shape, a, b, c);
    op_count_bytes(run, 2 * (double)shape.m * (double)shape.n * (double)shape.k, elem * (shape.m + shape.n) * shape.k,
                   elem * shape.m * shape.n);
}

gboolean REAL_NAME(linear_forward)(const OpRun *run, GError **error)
{
    const GraphParam *weight = op_weight(run->view, 0);
    const real *bias = values_param(run, 1);
    real *y = values_out(run, 0);
    int64_t rows = values_rows(run, 0);
    int64_t width = weight->dims[0];
    (void)error;
    product(run, (Matmul){.m = rows, .n = width, .k = weight->dims[1], .trans_b = TRUE}, values_in(run, 0),
            values_param(run, 0), y);
    if (run->aux[FP8_AUX_CODES] != NULL) {
        memcpy(values_aux(run, FP8_AUX_CODES), values_in(run, 0), (size_t)(rows * weight->dims[1]) * sizeof(real));
        values_zero(values_aux(run, FP8_AUX_SCALES), tensor_numel(run->aux[FP8_AUX_SCALES]));
    }
    if (bias != NULL) {
        for (int64_t t = 0; t < rows; t++) {
            for (int64_t j = 0; j < width; j++) {
                y[t * width + j] += bias[j];
            }
        }
        op_count_bytes(run, (double)(rows * width), op_weight_bytes(run->view, 1), 0);
    }
    return TRUE;
}

static void bias_gradient(const OpRun *run, const real *dy, real *db)
{
    int64_t rows = values_rows(run, 0);
    int64_t width = op_weight(run->view, 0)->dims[0];
    values_zero(db, width);
    for (int64_t t = 0; t < rows; t++) {
        for (int64_t j = 0; j < width; j++) {
            db[j] += dy[t * width + j];
        }
    }
    op_count_bytes(run, (double)(rows * width), op_out_bytes(run->view, 0), op_weight_bytes(run->view, 1));
}

gboolean REAL_NAME(linear_backward)(const OpRun *run, GError **error)
{
    const GraphParam *weight = op_weight(run->view, 0);
    const real *dy = values_dout(run, 0);
    int64_t rows = values_rows(run, 0);
    (void)error;
    if (dy == NULL) {
        values_zero_gradients(run);
        return TRUE;
    }
    if (run->din[0] != NULL) {
        product(run, (Matmul){.m = rows, .n = weight->dims[1], .k = weight->dims[0]}, dy, values_param(run, 0),
                values_din(run, 0));
    }
    if (run->dparam[0] != NULL) {
        Matmul shape = {.m = weight->dims[0], .n = weight->dims[1], .k = rows, .trans_a = TRUE};
        product(run, shape, dy, run->view->op->fp8 ? values_aux(run, FP8_AUX_CODES) : values_in(run, 0), values_dparam(run, 0));
    }
    if (run->dparam[1] != NULL) {
        bias_gradient(run, dy, values_dparam(run, 1));
    }
    return TRUE;
}

#if REAL_HAS_CLASS
int linear_add(Graph *graph, const char *name, int x, int64_t out_width, gboolean bias)
{
    const GraphTensor *in = graph_tensor(graph, x);
    RowSpace rows = in->rows;
    int64_t in_width = in->width;
    int weight = graph_add_param(graph, op_name(name, "weight").text, PARAM_MATRIX, out_width, in_width, 0);
    int b = -1;
    if (bias) {
        b = graph_add_param(graph, op_name(name, "bias").text, PARAM_VECTOR, out_width, 0, 0);
    }
    int y = graph_add_tensor(graph, name, rows, out_width, graph->compute);
    Op *op = op_add(graph, OP_linear, name, NULL, 0);
    op_input(op, x);
    op_param(graph, op, weight);
    op_param(graph, op, b);
    op_output(graph, op, y);
    return y;
}

static void linear_saved(const OpView *view, OpSaved *ret_saved)
{
    if (op_trains_param(view, 0) && view->op->fp8) {
        fp8_save_input(ret_saved, op_in(view, 0)->rows, op_in(view, 0)->width);
    } else {
        ret_saved->inputs = op_trains_param(view, 0) ? 1 : 0;
    }
}

static Fp8Product linear_product(const OpView *view)
{
    const GraphParam *weight = op_weight(view, 0);
    return (Fp8Product){.m = op_rows(view, op_in(view, 0)->rows), .n = weight->dims[0], .k = weight->dims[1], .n_weights = 1,
                        .elem_bytes = op_in_elem_bytes(view, 0), .has_codes = view->op->fp8_codes};
}

static Work *linear_gemm(const OpView *view, OpCost *cost, WorkLaw law, int64_t m, int64_t n, int64_t k)
{
    Work *work = op_cost_gemm(cost, law, view->graph->compute, m, n, k);
    if (view->op->fp8) {
        fp8_product(cost);
    }
    return work;
}

/* One GEMM in each direction that is needed; the bias is added as the result is written. */
static void linear_forward_cost(const OpView *view, OpCost *ret_cost)
{
    Fp8Product product = linear_product(view);
    if (view->op->fp8) {
        fp8_forward_operands(ret_cost, &product, op_trains_param(view, 0));
    }
    Work *work = linear_gemm(view, ret_cost, WORK_GEMM_NT, product.m, product.n, product.k);
    if (view->op->params[1] >= 0) {
        work->flops += (double)product.m * (double)product.n;
        work->read_bytes += op_weight_bytes(view, 1);
    }
}

static void linear_backward_cost(const OpView *view, OpCost *ret_cost)
{
    gboolean to_input = op_needs_input_grad(view, 0), to_weight = op_trains_param(view, 0);
    Fp8Product product = linear_product(view);
    if (view->op->fp8) {
        fp8_backward_operands(ret_cost, &product, to_input, to_weight);
    }
    if (to_input) {
        linear_gemm(view, ret_cost, WORK_GEMM_NN, product.m, product.k, product.n);
    }
    if (to_weight) {
        linear_gemm(view, ret_cost, WORK_GEMM_TN, product.n, product.k, product.m);
    }
    if (op_trains_param(view, 1)) {
        double adds = (double)product.m * (double)product.n;
        op_cost_stream(ret_cost, WORK_REDUCE, adds, op_out_bytes(view, 0), op_weight_bytes(view, 1));
    }
}

static gboolean linear_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        int64_t rows, in, out;
        gboolean bias, frozen, needs_grad;
    } samples[] = {{5, 7, 3, TRUE, FALSE, TRUE},
                   {1, 1, 1, FALSE, FALSE, TRUE},
                   {4, 6, 9, FALSE, TRUE, TRUE},
                   {8, 2, 5, TRUE, FALSE, FALSE}};
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->seq_len = samples[idx].rows;
    graph->freeze_base = samples[idx].frozen;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, samples[idx].in, graph->compute, samples[idx].needs_grad);
    graph_add_output(graph, linear_add(graph, "proj", x, samples[idx].out, samples[idx].bias));
    return TRUE;
}

extern const OpClass op_linear;
const OpClass op_linear = {
    .id = "linear",
    .title = "linear",
    .keep = OP_KEEP_MATMUL,
    .saved = linear_saved,
    .forward_cost = linear_forward_cost,
    .backward_cost = linear_backward_cost,
    .forward = REAL_KERNELS(linear_forward),
    .backward = REAL_KERNELS(linear_backward),
    .sample = linear_sample,
};
#endif
