/* Kimi delta attention: short convolutions, low-rank decay gate, delta rule, gated norm. */
#include "models/block.h"

#include "models/ops/activation.h"
#include "models/ops/gated-norm.h"
#include "models/ops/kda.h"
#include "models/ops/short-conv.h"

/* One of the three streams; without a convolution only its SiLU is left. */
static int kda_stream(Graph *graph, const Model *model, const char *name, int x)
{
    if (model->conv_kernel > 0) {
        return short_conv_add(graph, name, x, graph_tensor(graph, x)->width, model->conv_kernel, TRUE);
    }
    return activation_add(graph, name, &(ActivationAttr){.form = ACTIVATION_FORM_SILU}, x, -1);
}

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
    int64_t key = model->lin_heads * model->lin_key_dim;
    int64_t value = model->lin_value_heads * model->lin_value_dim;
    int q = block_linear(graph, options, "self_attn.q_proj", x, key, FALSE, adapted);
    q = kda_stream(graph, model, "self_attn.q_conv1d", q);
    int k = block_linear(graph, options, "self_attn.k_proj", x, key, FALSE, adapted);
    k = kda_stream(graph, model, "self_attn.k_conv1d", k);
    int v = block_linear(graph, options, "self_attn.v_proj", x, value, FALSE, adapted);
    v = kda_stream(graph, model, "self_attn.v_conv1d", v);
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
    const int inputs[5] = {q, k, v, z, beta};
    int o = kda_add(graph, "self_attn", inputs, &attr);
    int gate = kda_gate(graph, model, options, x);
    o = gated_norm_add(graph, "self_attn.o_norm", o, gate, model->lin_value_dim, GATED_NORM_SIGMOID, model->norm_eps);
    return block_linear(graph, options, "self_attn.o_proj", o, model->hidden, FALSE, adapted);
}

extern const BlockClass block_kda_layer;
const BlockClass block_kda_layer = {.title = "Kimi delta attention", .build = kda_build};
