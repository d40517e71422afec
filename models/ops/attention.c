#include "models/ops/attention.h"

#include <math.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
AttentionTensors attention_add(Graph *graph, const char *name, int q, int k, int v, const AttentionAttr *attr)
{
    const GraphTensor in = *graph_tensor(graph, q);
    AttentionAttr full = *attr;
    g_assert(full.kv_heads > 0 && full.heads % full.kv_heads == 0 && in.width == full.heads * full.head_dim);
    g_assert(graph_tensor(graph, k)->width == full.kv_heads * full.head_dim);
    g_assert(graph_tensor(graph, v)->width == full.kv_heads * full.v_dim);
    if (full.scale <= 0) {
        full.scale = 1 / sqrt((double)full.head_dim);
    }
    int sinks = -1;
    if (full.sinks) {
        sinks = graph_add_param(graph, op_name(name, "sinks").text, PARAM_VECTOR, full.heads, 0, 0);
    }
    AttentionTensors t = {
        .o = graph_add_tensor(graph, name, in.rows, full.heads * full.v_dim, in.dtype),
        .lse = graph_add_tensor(graph, op_name(name, "lse").text, in.rows, full.heads, DTYPE_FP32),
    };
    Op *op = op_add(graph, OP_attention, name, &full, sizeof full);
    op_input(op, q);
    op_input(op, k);
    op_input(op, v);
    op_param(graph, op, sinks);
    op_output(graph, op, t.o);
    op_output(graph, op, t.lse);
    return t;
}

extern const OpClass op_attention;
const OpClass op_attention = {.id = "attention", .title = "attention", .keep = OP_KEEP_ATTENTION, .no_grad_outputs = 2};
#endif
