#include "models/ops/grouped-gemm.h"

#include "models/op-name.h"
#include "models/real.h"

#if REAL_HAS_CLASS
static int add_product(Graph *graph, const char *name, int x, int64_t out, const GroupedGemmAttr *attr)
{
    GraphTensor *in = graph_tensor(graph, x);
    int64_t width = in->width;
    Dtype dtype = in->dtype;
    int weight = graph_add_param(graph, op_name(name, "weight").text, PARAM_MATRIX, attr->experts, out, width);
    graph_param(graph, weight)->split = PARAM_EXPERT;
    int y = graph_add_tensor(graph, op_name(name, "out").text, ROWS_RECEIVED, out, dtype);
    Op *op = op_add(graph, OP_grouped_gemm, name, attr, sizeof *attr);
    op_input(op, x);
    op_param(graph, op, weight);
    op_output(graph, op, y);
    return y;
}

int grouped_gemm_add(Graph *graph, const char *name, int x, int64_t out, int64_t experts)
{
    GroupedGemmAttr attr = {.experts = experts, .scale = 1};
    return add_product(graph, name, x, out, &attr);
}

int grouped_gemm_add_adapter(Graph *graph, const char *name, int x, int64_t out, int64_t experts, double scale)
{
    GroupedGemmAttr attr = {.experts = experts, .scale = scale};
    int y = add_product(graph, name, x, out, &attr);
    GraphParam *weight = graph_param(graph, graph_op(graph, graph_n_ops(graph) - 1)->params[0]);
    weight->trainable = TRUE;
    weight->is_adapter = TRUE;
    return y;
}

extern const OpClass op_grouped_gemm;
const OpClass op_grouped_gemm = {.id = "grouped_gemm", .title = "grouped GEMM"};
#endif
