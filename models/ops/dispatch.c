#include "models/ops/dispatch.h"

#include "models/op-name.h"
#include "models/real.h"

#if REAL_HAS_CLASS
DispatchTensors dispatch_add(Graph *graph, const char *name, int x, int counts, int64_t experts)
{
    DispatchAttr attr = {.experts = experts, .ep_size = graph->ep_size};
    if (graph->ep_size == 1) {
        return (DispatchTensors){.rows = x, .arrival = -1};
    }
    int64_t width = graph_tensor(graph, x)->width;
    Dtype dtype = graph_tensor(graph, x)->dtype;
    DispatchTensors t = {
        .rows = graph_add_tensor(graph, op_name(name, "rows").text, ROWS_RECEIVED, width, dtype),
        .arrival = graph_add_tensor(graph, op_name(name, "arrival").text, ROWS_RECEIVED, 1, DTYPE_INT64),
    };
    graph_tensor(graph, t.rows)->tag = MEM_DISPATCH;
    graph_tensor(graph, t.arrival)->tag = MEM_DISPATCH;
    Op *op = op_add(graph, OP_dispatch, name, &attr, sizeof attr);
    op_input(op, x);
    op_input(op, counts);
    op_output(graph, op, t.rows);
    op_output(graph, op, t.arrival);
    return t;
}

extern const OpClass op_dispatch;
const OpClass op_dispatch = {.id = "dispatch", .title = "dispatch all-to-all"};
#endif
