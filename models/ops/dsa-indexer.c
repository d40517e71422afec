#include "models/ops/dsa-indexer.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/ops/layernorm.h"
#include "models/ops/linear.h"
#include "models/ops/rope.h"
#include "models/real.h"

#if REAL_HAS_CLASS
DsaIndexerTensors dsa_indexer_add(Graph *graph, const char *name, int q, int k, int w, const DsaIndexerAttr *attr)
{
    DsaIndexerTensors t = {.q = q, .k = k, .w = w, .scores = -1};
    g_assert(graph_tensor(graph, q)->width == attr->heads * attr->dim && graph_tensor(graph, k)->width == attr->dim);
    g_assert(graph_tensor(graph, w)->width == attr->heads && attr->top_k > 0);
    t.sel = graph_add_tensor(graph, op_name(name, "sel").text, ROWS_TOKENS, attr->top_k, DTYPE_INT32);
    if (attr->emit_scores) {
        t.scores = graph_add_tensor(graph, op_name(name, "scores").text, ROWS_PAIRS, 1, DTYPE_FP32);
    }
    Op *op = op_add(graph, OP_dsa_indexer, name, attr, sizeof *attr);
    op_input(op, q);
    op_input(op, k);
    op_input(op, w);
    op->detached = attr->emit_scores ? 0 : 7;
    op_output(graph, op, t.sel);
    if (t.scores >= 0) {
        op_output(graph, op, t.scores);
    }
    return t;
}

/* A linear layer through which no gradient flows back. */
static int detached_linear_add(Graph *graph, const char *name, int x, int64_t out_width)
{
    int y = linear_add(graph, name, x, out_width, FALSE);
    graph_op(graph, graph_n_ops(graph) - 1)->detached = 1;
    return y;
}

DsaIndexerTensors dsa_indexer_layer_add(Graph *graph, const char *prefix, int x, int cq, int positions, const DsaIndexerLayer *layer)
{
    int64_t heads = layer->select.heads;
    int64_t dim = layer->select.dim;
    int q = detached_linear_add(graph, op_name(prefix, "wq_b").text, cq, heads * dim);
    int k = detached_linear_add(graph, op_name(prefix, "wk").text, x, dim);
    k = layernorm_add(graph, op_name(prefix, "k_norm").text, k, layer->norm_eps);
    if (layer->rotary_dim > 0) {
        RopeAttr rope = {
            .heads = heads, .head_dim = dim, .rotary_dim = layer->rotary_dim, .base = layer->rope_base, .layout = ROPE_HALF};
        q = rope_add(graph, op_name(prefix, "q_rope").text, q, positions, &rope);
        rope.heads = 1;
        k = rope_add(graph, op_name(prefix, "k_rope").text, k, positions, &rope);
    }
    int w = detached_linear_add(graph, op_name(prefix, "weights_proj").text, x, heads);
    return dsa_indexer_add(graph, prefix, q, k, w, &layer->select);
}

extern const OpClass op_dsa_indexer;
const OpClass op_dsa_indexer = {.id = "dsa_indexer", .title = "DSA indexer", .no_grad_outputs = 1};
#endif
