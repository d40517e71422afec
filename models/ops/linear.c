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

extern const OpClass op_linear;
const OpClass op_linear = {.id = "linear", .title = "linear", .keep = OP_KEEP_MATMUL};
#endif
