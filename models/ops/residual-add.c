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

extern const OpClass op_residual_add;
const OpClass op_residual_add = {.id = "residual_add", .title = "residual add"};
#endif
