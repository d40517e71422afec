#include "models/ops/gated-norm.h"

#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int gated_norm_add(Graph *graph, const char *name, int x, int gate, int64_t dim, GatedNormKind kind, double eps)
{
    GatedNormAttr attr = {dim, kind, eps};
    char param_name[GRAPH_NAME_MAX];
    g_snprintf(param_name, sizeof param_name, "%s.weight", name);
    int weight = graph_add_param(graph, param_name, PARAM_VECTOR, dim, 0, 0);
    GraphTensor in = *graph_tensor(graph, x);
    g_assert(in.width % dim == 0 && graph_tensor(graph, gate)->width == in.width);
    int y = graph_add_tensor(graph, name, in.rows, in.width, graph->compute);
    Op *op = op_add(graph, OP_gated_norm, name, &attr, sizeof attr);
    op_input(op, x);
    op_input(op, gate);
    op_param(graph, op, weight);
    op_output(graph, op, y);
    return y;
}

extern const OpClass op_gated_norm;
const OpClass op_gated_norm = {.id = "gated_norm", .title = "gated head RMSNorm"};
#endif
