#include "models/ops/expert-bias.h"

#include "models/op-name.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int expert_bias_add(Graph *graph, const char *name, int x, int64_t experts)
{
    ExpertBiasAttr attr = {.experts = experts};
    int64_t width = graph_tensor(graph, x)->width;
    int bias = graph_add_param(graph, name, PARAM_VECTOR, experts, width, 0);
    graph_param(graph, bias)->split = PARAM_EXPERT;
    int y = graph_add_tensor(graph, op_name(name, "out").text, ROWS_RECEIVED, width, graph_tensor(graph, x)->dtype);
    Op *op = op_add(graph, OP_expert_bias, name, &attr, sizeof attr);
    op_input(op, x);
    op_param(graph, op, bias);
    op_output(graph, op, y);
    return y;
}

extern const OpClass op_expert_bias;
const OpClass op_expert_bias = {.id = "expert_bias", .title = "expert bias"};
#endif
