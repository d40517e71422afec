/* Kimi delta attention: short convolutions, low-rank decay gate, delta rule, gated norm. */
#include "models/block.h"

#include "models/ops/gated-norm.h"
#include "models/ops/kda.h"

static int kda_gate(Graph *graph, const Model *model, const BlockOptions *options, int x)
{
    int64_t width = model->lin_value_heads * model->lin_value_dim;
    if (model->kda_full_gate) {
        return block_linear(graph, options, "self_attn.g_proj", x, width, FALSE, options->lora_attention);
    }
    int low = block_linear(graph, options, "self_attn.g_a_proj", x, model->lin_key_dim, FALSE, options->lora_attention);
    return block_linear(graph, options, "self_attn.g_b_proj", low, width, FALSE, options->lora_attention);
}

static int kda_build(Graph *graph, const Model *model, const ModelLayer *layer, const BlockOptions *options, int x)
{
    (void)layer;
    gboolean adapted = options->lora_attention;
    int qkv[3];
    block_linear_streams(graph, model, options, x, qkv);
    graph_set_heads(graph, "self_attn.q_proj.weight", model->lin_heads);
    graph_set_heads(graph, "self_attn.k_proj.weight", model->lin_heads);
    graph_set_heads(graph, "self_attn.v_proj.weight", model->lin_value_heads);
    int low = block_linear(graph, options, "self_attn.f_a_proj", x, model->lin_key_dim, FALSE, adapted);
    int z = block_linear(graph, options, "self_attn.f_b_proj", low, model->lin_value_heads * model->lin_key_dim, FALSE,
                         adapted);
    int beta = block_linear(graph, options, "self_attn.b_proj", x, model->lin_value_heads, FALSE, FALSE);
    KdaAttr attr = {.heads = model->lin_heads,
                    .value_heads = model->lin_value_heads,
                    .key_dim = model->lin_key_dim,
                    .value_dim = model->lin_value_dim,
                    .gate = model->kda_gate_bound < 0 ? KDA_GATE_BOUNDED : KDA_GATE_SOFTPLUS,
                    .lower_bound = model->kda_gate_bound};
    const int inputs[5] = {qkv[0], qkv[1], qkv[2], z, beta};
    int o = kda_add(graph, "self_attn", inputs, &attr);
    int gate = kda_gate(graph, model, options, x);
    o = gated_norm_add(graph, "self_attn.o_norm", o, gate, model->lin_value_dim, GATED_NORM_SIGMOID, model->norm_eps);
    return block_linear(graph, options, "self_attn.o_proj", o, model->hidden, FALSE, adapted);
}

extern const BlockClass block_kda_layer;
const BlockClass block_kda_layer = {.title = "Kimi delta attention", .build = kda_build};
