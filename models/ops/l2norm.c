#include "models/ops/l2norm.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

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

extern const OpClass op_l2norm;
const OpClass op_l2norm = {.id = "l2norm", .title = "L2 norm"};
#endif
