#include "models/ops/layernorm.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

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

extern const OpClass op_layernorm;
const OpClass op_layernorm = {.id = "layernorm", .title = "LayerNorm"};
#endif
