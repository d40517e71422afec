#include "models/ops/router.h"

#include "models/op-name.h"
#include "models/real.h"

#if REAL_HAS_CLASS
enum { OUT_WEIGHTS, OUT_SEL, OUT_ORDER, OUT_COUNTS, OUT_LOGITS };

RouterTensors router_add(Graph *graph, const char *name, int x, const RouterAttr *attr)
{
    int64_t hidden = graph_tensor(graph, x)->width;
    int64_t k = attr->top_k;
    g_assert(k > 0 && k <= attr->experts);
    int weight = graph_add_param(graph, op_name(name, "weight").text, PARAM_MATRIX, attr->experts, hidden, 0);
    int buffer = -1;
    int bias = -1;
    if (attr->bias_buffer) {
        buffer = graph_add_param(graph, op_name(name, "e_score_correction_bias").text, PARAM_BUFFER, attr->experts, 0, 0);
        graph_param(graph, buffer)->always_fp32 = TRUE;
    }
    if (attr->linear_bias) {
        bias = graph_add_param(graph, op_name(name, "bias").text, PARAM_VECTOR, attr->experts, 0, 0);
    }
    RouterTensors t = {
        .weights = graph_add_tensor(graph, op_name(name, "weights").text, ROWS_TOKENS, k, DTYPE_FP32),
        .sel = graph_add_tensor(graph, op_name(name, "sel").text, ROWS_TOKENS, k, DTYPE_INT64),
        .order = graph_add_tensor(graph, op_name(name, "order").text, ROWS_TOKENS, k, DTYPE_INT64),
        .counts = graph_add_tensor(graph, op_name(name, "counts").text, ROWS_EXPERTS, 1, DTYPE_INT64),
        .logits = -1,
    };
    if (attr->emit_logits) {
        t.logits = graph_add_tensor(graph, op_name(name, "logits").text, ROWS_TOKENS, attr->experts, DTYPE_FP32);
    }
    Op *op = op_add(graph, OP_router, name, attr, sizeof *attr);
    op_input(op, x);
    op_param(graph, op, weight);
    op_param(graph, op, buffer);
    op_param(graph, op, bias);
    op_output(graph, op, t.weights);
    op_output(graph, op, t.sel);
    op_output(graph, op, t.order);
    op_output(graph, op, t.counts);
    if (t.logits >= 0) {
        op_output(graph, op, t.logits);
    }
    return t;
}

extern const OpClass op_router;
const OpClass op_router = {.id = "router", .title = "router"};
#endif
