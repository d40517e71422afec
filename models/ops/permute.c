#include "models/ops/permute.h"

#include "models/op-name.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int permute_add(Graph *graph, const char *name, int x, int order)
{
    PermuteAttr attr = {.top_k = graph_tensor(graph, order)->width};
    GraphTensor *in = graph_tensor(graph, x);
    int64_t width = in->width;
    int rows = graph_add_tensor(graph, op_name(name, "rows").text, ROWS_SLOTS, width, in->dtype);
    graph_tensor(graph, rows)->tag = MEM_DISPATCH;
    Op *op = op_add(graph, OP_permute, name, &attr, sizeof attr);
    op_input(op, x);
    op_input(op, order);
    op_output(graph, op, rows);
    return rows;
}

extern const OpClass op_permute;
const OpClass op_permute = {.id = "permute", .title = "permute"};
#endif
