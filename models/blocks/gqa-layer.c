/* Grouped-query attention: with QK norms, partial RoPE, sliding window, sinks, biases or an output gate as the model
 * asks. */
#include "models/block.h"

#include "models/ops/attention.h"
#include "models/ops/rope.h"
#include "models/ops/sigmoid-gate.h"
#include "models/ops/split.h"

static int gqa_norm(Graph *graph, const Model *model, const char *name, int x)
{
    if (model->qk_norm == QK_NORM_NONE) {
        return x;
    }
    int64_t width = model->qk_norm == QK_NORM_HEAD ? model->head_dim : graph_tensor(graph, x)->width;
    return block_norm(graph, name, x, width, model->norm_eps, model->norm_zero_centered);
}

static int gqa_rope(Graph *graph, const Model *model, const char *name, int x, int64_t heads)
{
    if (model->rope == ROPE_NONE) {
        return x;
    }
    RopeAttr attr = {.heads = heads,
                     .head_dim = model->head_dim,
                     .rotary_dim = model->rotary_dim,
                     .base = model->rope_base,
                     .layout = model->rope};
    return rope_add(graph, name, x, -1, &attr);
}

static int gqa_build(Graph *graph, const Model *model, const ModelLayer *layer, const BlockOptions *options, int x)
{
    gboolean adapted = options->lora_attention;
    int64_t q_width = model->n_heads * model->head_dim;
    int64_t kv_width = model->n_kv_heads * model->head_dim;
    int parts[2] = {-1, -1};
    int gate = -1;
    int q = block_linear(graph, options, "self_attn.q_proj", x, q_width * (model->gated_attention ? 2 : 1),
                         model->qkv_bias, adapted);
    int k = block_linear(graph, options, "self_attn.k_proj", x, kv_width, model->qkv_bias, adapted);
    int v = block_linear(graph, options, "self_attn.v_proj", x, kv_width, model->qkv_bias, adapted);
    graph_set_heads(graph, "self_attn.q_proj.weight", model->n_heads);
    graph_set_heads(graph, "self_attn.k_proj.weight", model->n_kv_heads);
    graph_set_heads(graph, "self_attn.v_proj.weight", model->n_kv_heads);
    if (model->gated_attention) { /* rows of q_proj per head: query, then gate */
        SplitAttr split = {.groups = model->n_heads, .n_parts = 2, .widths = {model->head_dim, model->head_dim}};
        split_add(graph, "self_attn.q_split", q, &split, parts);
        q = parts[0];
        gate = parts[1];
    }
    q = gqa_norm(graph, model, "self_attn.q_norm", q);
    k = gqa_norm(graph, model, "self_attn.k_norm", k);
    q = gqa_rope(graph, model, "self_attn.q_rope", q, model->n_heads);
    k = gqa_rope(graph, model, "self_attn.k_rope", k, model->n_kv_heads);
    AttentionAttr attr = {.heads = model->n_heads,
                          .kv_heads = model->n_kv_heads,
                          .head_dim = model->head_dim,
                          .v_dim = model->head_dim,
                          .causal = TRUE,
                          .window = layer->sliding_window,
                          .sinks = model->attention_sinks};
    int o = attention_add(graph, "self_attn", q, k, v, &attr).o;
    if (gate >= 0) {
        o = sigmoid_gate_add(graph, "self_attn.gate", o, gate);
    }
    return block_linear(graph, options, "self_attn.o_proj", o, model->hidden, model->o_bias, adapted);
}

extern const BlockClass block_gqa_layer;
const BlockClass block_gqa_layer = {.title = "grouped-query attention", .build = gqa_build};
