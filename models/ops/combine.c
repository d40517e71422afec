#include "models/ops/combine.h"

#include "models/op-name.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int combine_add(Graph *graph, const char *name, int y, int arrival)
{
    CombineAttr attr = {.ep_size = graph->ep_size};
    if (graph->ep_size == 1) {
        return y;
    }
    int64_t width = graph_tensor(graph, y)->width;
    Dtype dtype = graph_tensor(graph, y)->dtype;
    int rows = graph_add_tensor(graph, op_name(name, "rows").text, ROWS_SLOTS, width, dtype);
    graph_tensor(graph, rows)->tag = MEM_DISPATCH;
    Op *op = op_add(graph, OP_combine, name, &attr, sizeof attr);
    op_input(op, y);
    op_input(op, arrival);
    op_output(graph, op, rows);
    return rows;
}

extern const OpClass op_combine;
const OpClass op_combine = {.id = "combine", .title = "combine all-to-all"};
#endif
