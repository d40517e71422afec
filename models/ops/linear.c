#include "models/ops/linear.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

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
    ret_saved->inputs = op_trains_param(view, 0) ? 1 : 0;
}

/* One GEMM in each direction that is needed; the bias is added as the result is written. */
static void linear_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const GraphParam *weight = op_weight(view, 0);
    int64_t rows = op_rows(view, op_in(view, 0)->rows);
    Work *work = op_cost_gemm(ret_cost, WORK_GEMM_NT, view->graph->compute, rows, weight->dims[0], weight->dims[1]);
    if (view->op->params[1] >= 0) {
        work->flops += (double)rows * (double)weight->dims[0];
        work->read_bytes += op_weight_bytes(view, 1);
    }
}

static void linear_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const GraphParam *weight = op_weight(view, 0);
    Dtype dtype = view->graph->compute;
    int64_t rows = op_rows(view, op_in(view, 0)->rows);
    if (op_needs_input_grad(view, 0)) {
        op_cost_gemm(ret_cost, WORK_GEMM_NN, dtype, rows, weight->dims[1], weight->dims[0]);
    }
    if (op_trains_param(view, 0)) {
        op_cost_gemm(ret_cost, WORK_GEMM_TN, dtype, weight->dims[0], weight->dims[1], rows);
    }
    if (op_trains_param(view, 1)) {
        double adds = (double)rows * (double)weight->dims[0];
        op_cost_stream(ret_cost, WORK_REDUCE, adds, op_out_bytes(view, 0), op_weight_bytes(view, 1));
    }
}

extern const OpClass op_linear;
const OpClass op_linear = {
    .id = "linear",
    .title = "linear",
    .keep = OP_KEEP_MATMUL,
    .saved = linear_saved,
    .forward_cost = linear_forward_cost,
    .backward_cost = linear_backward_cost,
};
#endif
