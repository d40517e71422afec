/* Gated delta net: short convolutions, one decay per value head, delta rule, gated norm. */
#include "models/block.h"

#include "models/ops/gated-norm.h"
#include "models/ops/gdn.h"

static int gdn_build(Graph *graph, const Model *model, const ModelLayer *layer, const BlockOptions *options, int x)
{
    (void)layer;
    gboolean adapted = options->lora_attention;
    int64_t value = model->lin_value_heads * model->lin_value_dim;
    int qkv[3];
    block_linear_streams(graph, model, options, x, qkv);
    int z = block_linear(graph, options, "self_attn.z_proj", x, value, FALSE, adapted);
    int a = block_linear(graph, options, "self_attn.a_proj", x, model->lin_value_heads, FALSE, FALSE);
    int beta = block_linear(graph, options, "self_attn.b_proj", x, model->lin_value_heads, FALSE, FALSE);
    GdnAttr attr = {.heads = model->lin_heads,
                    .value_heads = model->lin_value_heads,
                    .key_dim = model->lin_key_dim,
                    .value_dim = model->lin_value_dim};
    const int inputs[5] = {qkv[0], qkv[1], qkv[2], a, beta};
    int o = gdn_add(graph, "self_attn", inputs, &attr);
    o = gated_norm_add(graph, "self_attn.o_norm", o, z, model->lin_value_dim, GATED_NORM_SILU, model->norm_eps);
    return block_linear(graph, options, "self_attn.o_proj", o, model->hidden, FALSE, adapted);
}

extern const BlockClass block_gdn_layer;
const BlockClass block_gdn_layer = {.title = "gated delta net", .build = gdn_build};
