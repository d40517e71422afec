#include "models/ops/rmsnorm.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

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

extern const OpClass op_rmsnorm;
const OpClass op_rmsnorm = {.id = "rmsnorm", .title = "RMSNorm"};
#endif
