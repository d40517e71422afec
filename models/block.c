#include "models/block.h"

#include "models/op-name.h"
#include "models/ops/activation.h"
#include "models/ops/linear.h"
#include "models/ops/residual-add.h"
#include "models/ops/rmsnorm.h"
#include "models/ops/short-conv.h"

#define BLOCK(id, title) extern const BlockClass block_##id;
#include "models/blocks.def"
#undef BLOCK

static const BlockClass *const block_classes[N_BLOCKS] = {
#define BLOCK(id, title) [BLOCK_##id] = &block_##id,
#include "models/blocks.def"
#undef BLOCK
};

const BlockClass *block_class(BlockKind kind)
{
    g_assert(kind < N_BLOCKS);
    return block_classes[kind];
}

/* One of the two matrices of an adapter; it trains although the base is frozen. */
static int block_adapter(Graph *graph, const char *name, int x, int64_t out_width)
{
    guint first = graph->params->len;
    int y = linear_add(graph, name, x, out_width, FALSE);
    GraphParam *param = graph_param(graph, (int)first);
    param->trainable = TRUE;
    param->is_adapter = TRUE;
    return y;
}

int block_linear(Graph *graph, const BlockOptions *options, const char *name, int x, int64_t out_width, gboolean bias,
                 gboolean adapted)
{
    int y = linear_add(graph, name, x, out_width, bias);
    if (!options->lora || !adapted) {
        return y;
    }
    int u = block_adapter(graph, op_name(name, "lora_A").text, x, options->lora_rank);
    int v = block_adapter(graph, op_name(name, "lora_B").text, u, out_width);
    return residual_add(graph, op_name(name, "lora").text, y, v, options->lora_scale > 0 ? options->lora_scale : 1.0);
}

void block_linear_streams(Graph *graph, const Model *model, const BlockOptions *options, int x, int ret_qkv[3])
{
    static const char *const projections[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    static const char *const convolutions[] = {"self_attn.q_conv1d", "self_attn.k_conv1d", "self_attn.v_conv1d"};
    const int64_t key = model->lin_heads * model->lin_key_dim;
    const int64_t widths[] = {key, key, model->lin_value_heads * model->lin_value_dim};
    for (int i = 0; i < 3; i++) {
        int y = block_linear(graph, options, projections[i], x, widths[i], FALSE, options->lora_attention);
        ret_qkv[i] = model->conv_kernel > 0
                         ? short_conv_add(graph, convolutions[i], y, widths[i], model->conv_kernel, TRUE)
                         : activation_add(graph, convolutions[i], &(ActivationAttr){.form = ACTIVATION_FORM_SILU}, y, -1);
    }
}

int block_norm(Graph *graph, const char *name, int x, int64_t width, double eps, gboolean zero_centered)
{
    return rmsnorm_add(graph, name, x, width, eps, zero_centered);
}

int block_add(Graph *graph, const char *name, int x, int y)
{
    return residual_add(graph, name, x, y, 1.0);
}

int block_activation(Graph *graph, const Model *model, const char *name, int gate, int up)
{
    static const ActivationForm forms[] = {
        [ACTIVATION_SWIGLU] = ACTIVATION_FORM_SWIGLU, [ACTIVATION_SITU] = ACTIVATION_FORM_SITU,
        [ACTIVATION_GPTOSS] = ACTIVATION_FORM_GPTOSS, [ACTIVATION_RELU2] = ACTIVATION_FORM_RELU2,
        [ACTIVATION_GELU] = ACTIVATION_FORM_GELU,
    };
    ActivationAttr attr = {
        .form = forms[model->activation], .beta = model->situ_beta, .linear_beta = model->situ_linear_beta};
    return activation_add(graph, name, &attr, gate, up);
}

int block_mlp(Graph *graph, const Model *model, const BlockOptions *options, const char *prefix, int x, int64_t width,
              gboolean adapted)
{
    int up = -1;
    int gate;
    if (model->ungated_mlp) {
        gate = block_linear(graph, options, op_name(prefix, "up_proj").text, x, width, FALSE, adapted);
    } else {
        gate = block_linear(graph, options, op_name(prefix, "gate_proj").text, x, width, FALSE, adapted);
        up = block_linear(graph, options, op_name(prefix, "up_proj").text, x, width, FALSE, adapted);
    }
    int act = block_activation(graph, model, op_name(prefix, "act").text, gate, up);
    return block_linear(graph, options, op_name(prefix, "down_proj").text, act, model->hidden, FALSE, adapted);
}
