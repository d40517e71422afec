#include "models/ops/residual-add.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"
#include "models/values.h"

REAL_DECLARE(residual_add_forward);
REAL_DECLARE(residual_add_backward);

gboolean REAL_NAME(residual_add_forward)(const OpRun *run, GError **error)
{
    const ResidualAddAttr *attr = run->view->op->attr;
    const real *x = values_in(run, 0);
    const real *y = values_in(run, 1);
    real *sum = values_out(run, 0);
    real scale = (real)attr->scale;
    int64_t n = tensor_numel(run->out[0]);
    (void)error;
    for (int64_t i = 0; i < n; i++) {
        sum[i] = x[i] + scale * y[i];
    }
    op_count_bytes(run, attr->scale == 1 ? (double)n : 2 * (double)n, 2 * op_out_bytes(run->view, 0),
                   op_out_bytes(run->view, 0));
    return TRUE;
}

/* The gradient of an unscaled term is the sum's own: the copy here stands for the same tensor and is not counted. */
gboolean REAL_NAME(residual_add_backward)(const OpRun *run, GError **error)
{
    const ResidualAddAttr *attr = run->view->op->attr;
    const real *dsum = values_dout(run, 0);
    (void)error;
    if (dsum == NULL) {
        values_zero_gradients(run);
        return TRUE;
    }
    for (int input = 0; input < 2; input++) {
        real *d = values_din(run, input);
        real scale = input == 0 ? 1 : (real)attr->scale;
        if (d == NULL) {
            continue;
        }
        int64_t n = tensor_numel(run->din[input]);
        for (int64_t i = 0; i < n; i++) {
            d[i] = scale * dsum[i];
        }
        if (input == 1 && attr->scale != 1) {
            op_count_bytes(run, (double)n, op_out_bytes(run->view, 0), op_out_bytes(run->view, 0));
        }
    }
    return TRUE;
}

#if REAL_HAS_CLASS
int residual_add(Graph *graph, const char *name, int x, int y, double scale)
{
    const GraphTensor in = *graph_tensor(graph, x);
    ResidualAddAttr attr = {.scale = scale};
    g_assert(graph_tensor(graph, y)->width == in.width && graph_tensor(graph, y)->rows == in.rows);
    int sum = graph_add_tensor(graph, name, in.rows, in.width, in.dtype);
    Op *op = op_add(graph, OP_residual_add, name, &attr, sizeof attr);
    op_input(op, x);
    op_input(op, y);
    op_output(graph, op, sum);
    return sum;
}

static void residual_add_saved(const OpView *view, OpSaved *ret_saved)
{
    (void)view;
    (void)ret_saved;
}

static double add_scale(const OpView *view)
{
    const ResidualAddAttr *attr = view->op->attr;
    return attr->scale;
}

static void residual_add_forward_cost(const OpView *view, OpCost *ret_cost)
{
    double n = (double)graph_tensor_numel(op_out(view, 0), view->rows);
    int64_t bytes = op_out_bytes(view, 0);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, add_scale(view) == 1 ? n : 2 * n, 2 * bytes, bytes);
}

static void residual_add_backward_cost(const OpView *view, OpCost *ret_cost)
{
    if (add_scale(view) != 1 && op_needs_input_grad(view, 1)) {
        double n = (double)graph_tensor_numel(op_out(view, 0), view->rows);
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, n, op_out_bytes(view, 0), op_out_bytes(view, 0));
    }
}

static gboolean residual_add_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        int64_t rows, width;
        double scale;
    } samples[] = {{5, 7, 1}, {1, 1, -2}, {4, 3, 0.5}};
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->seq_len = samples[idx].rows;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, samples[idx].width, graph->compute, TRUE);
    int y = graph_add_input(graph, "y", ROWS_TOKENS, samples[idx].width, graph->compute, TRUE);
    graph_add_output(graph, residual_add(graph, "sum", x, y, samples[idx].scale));
    return TRUE;
}

extern const OpClass op_residual_add;
const OpClass op_residual_add = {
    .id = "residual_add",
    .title = "residual add",
    .saved = residual_add_saved,
    .forward_cost = residual_add_forward_cost,
    .backward_cost = residual_add_backward_cost,
    .forward = REAL_KERNELS(residual_add_forward),
    .backward = REAL_KERNELS(residual_add_backward),
    .sample = residual_add_sample,
};
#endif
