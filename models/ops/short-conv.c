#include "models/ops/short-conv.h"

#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int short_conv_add(Graph *graph, const char *name, int x, int64_t channels, int64_t kernel, gboolean silu)
{
    ShortConvAttr attr = {channels, kernel, silu};
    char param_name[GRAPH_NAME_MAX];
    g_snprintf(param_name, sizeof param_name, "%s.weight", name);
    int weight = graph_add_param(graph, param_name, PARAM_VECTOR, channels, 1, kernel);
    graph_param(graph, weight)->always_fp32 = TRUE;
    g_assert(graph_tensor(graph, x)->width == channels);
    RowSpace rows = graph_tensor(graph, x)->rows;
    int y = graph_add_tensor(graph, name, rows, channels, graph->compute);
    Op *op = op_add(graph, OP_short_conv, name, &attr, sizeof attr);
    op_input(op, x);
    op_param(graph, op, weight);
    op_output(graph, op, y);
    return y;
}

extern const OpClass op_short_conv;
const OpClass op_short_conv = {.id = "short_conv", .title = "short convolution"};
#endif
