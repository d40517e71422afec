#include "models/ops/residual-add.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

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

extern const OpClass op_residual_add;
const OpClass op_residual_add = {
    .id = "residual_add",
    .title = "residual add",
    .saved = residual_add_saved,
    .forward_cost = residual_add_forward_cost,
    .backward_cost = residual_add_backward_cost,
};
#endif
