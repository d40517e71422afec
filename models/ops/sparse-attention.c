#include "models/ops/sparse-attention.h"

#include <math.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
static SparseAttentionTensors outputs_add(Graph *graph, const char *name, Dtype dtype, const SparseAttentionAttr *attr)
{
    SparseAttentionTensors t = {.q_abs = -1};
    t.o = graph_add_tensor(graph, name, ROWS_TOKENS, attr->heads * attr->v_dim, dtype);
    t.lse = graph_add_tensor(graph, op_name(name, "lse").text, ROWS_TOKENS, attr->heads, DTYPE_FP32);
    if (attr->latent > 0) {
        int64_t width = attr->heads * (attr->latent + attr->rope_dim);
        t.q_abs = graph_add_tensor(graph, op_name(name, "q_abs").text, ROWS_TOKENS, width, dtype);
    }
    return t;
}

static SparseAttentionTensors sparse_add(Graph *graph, const char *name, int param, const int inputs[4], const SparseAttentionAttr *attr)
{
    SparseAttentionAttr full = *attr;
    if (full.scale <= 0) {
        full.scale = 1 / sqrt((double)full.head_dim);
    }
    g_assert(graph_tensor(graph, inputs[0])->width == full.heads * full.head_dim);
    SparseAttentionTensors t = outputs_add(graph, name, graph_tensor(graph, inputs[0])->dtype, &full);
    Op *op = op_add(graph, OP_sparse_attention, name, &full, sizeof full);
    for (int i = 0; i < 4; i++) {
        op_input(op, inputs[i]);
    }
    op_param(graph, op, param);
    op_output(graph, op, t.o);
    op_output(graph, op, t.lse);
    if (t.q_abs >= 0) {
        op_output(graph, op, t.q_abs);
    }
    return t;
}

SparseAttentionTensors sparse_attention_add(Graph *graph, const char *name, int q, int k, int v, int sel, const SparseAttentionAttr *attr)
{
    g_assert(attr->latent == 0 && attr->kv_heads > 0 && attr->heads % attr->kv_heads == 0);
    g_assert(graph_tensor(graph, k)->width == attr->kv_heads * attr->head_dim);
    g_assert(graph_tensor(graph, v)->width == attr->kv_heads * attr->v_dim);
    return sparse_add(graph, name, -1, (int[]){q, k, v, sel}, attr);
}

SparseAttentionTensors sparse_mla_add(Graph *graph, const char *name, const char *param, const int inputs[4], const SparseAttentionAttr *attr)
{
    int64_t rows = attr->heads * (attr->head_dim - attr->rope_dim + attr->v_dim);
    g_assert(attr->latent > 0 && attr->rope_dim > 0 && attr->rope_dim < attr->head_dim);
    g_assert(graph_tensor(graph, inputs[1])->width == attr->latent);
    g_assert(graph_tensor(graph, inputs[2])->width == attr->rope_dim);
    int weight = graph_add_param(graph, op_name(param, "weight").text, PARAM_MATRIX, rows, attr->latent, 0);
    return sparse_add(graph, name, weight, inputs, attr);
}

extern const OpClass op_sparse_attention;
const OpClass op_sparse_attention = {.id = "sparse_attention", .title = "sparse attention", .keep = OP_KEEP_ATTENTION, .no_grad_inputs = 8, .no_grad_outputs = 6};
#endif
