/*
 * Vision tower (MoonViT) and projector: patches to rows of the text stream.
 *
 * Blocks of full attention inside an image, with rotary embedding in two dimensions; then 2 x 2 patches are merged and
 * projected to the hidden size of the language model.
 */
#include "models/block.h"

#include "models/op-name.h"
#include "models/ops/activation.h"
#include "models/ops/attention.h"
#include "models/ops/image-merge.h"
#include "models/ops/linear.h"
#include "models/ops/patch-embed.h"
#include "models/ops/residual-add.h"
#include "models/ops/rope.h"
#include "models/ops/split.h"

static const double vision_eps = 1e-5;      /* projector_ln_eps of the published files */
static const double vision_rope_base = 1e4; /* MoonViT's */

static int vision_attention(Graph *graph, const Model *model, const char *prefix, int x, int positions)
{
    int64_t heads = model->vision_heads;
    int64_t width = heads * model->vision_head_dim;
    int parts[3];
    int qkv = linear_add(graph, op_name(prefix, "wqkv").text, x, 3 * width, FALSE);
    SplitAttr split = {.groups = 1, .n_parts = 3, .widths = {width, width, width}};
    split_add(graph, op_name(prefix, "qkv_split").text, qkv, &split, parts);
    RopeAttr rope = {.heads = heads,
                     .head_dim = model->vision_head_dim,
                     .rotary_dim = model->vision_head_dim,
                     .base = vision_rope_base,
                     .layout = ROPE_INTERLEAVED,
                     .planar = TRUE};
    int q = rope_add(graph, op_name(prefix, "q_rope").text, parts[0], positions, &rope);
    int k = rope_add(graph, op_name(prefix, "k_rope").text, parts[1], positions, &rope);
    AttentionAttr attr = {
        .heads = heads, .kv_heads = heads, .head_dim = model->vision_head_dim, .v_dim = model->vision_head_dim};
    int o = attention_add(graph, op_name(prefix, "attention").text, q, k, parts[2], &attr).o;
    return linear_add(graph, op_name(prefix, "wo").text, o, model->vision_hidden, FALSE);
}

static int vision_mlp(Graph *graph, const Model *model, const char *prefix, int x)
{
    int y = linear_add(graph, op_name(prefix, "fc0").text, x, model->vision_width, FALSE);
    y = activation_add(graph, op_name(prefix, "act").text, &(ActivationAttr){.form = ACTIVATION_FORM_GELU_TANH}, y, -1);
    return linear_add(graph, op_name(prefix, "fc1").text, y, model->vision_hidden, FALSE);
}

static int vision_block(Graph *graph, const Model *model, int64_t i, int x, int positions)
{
    g_autofree char *prefix = g_strdup_printf("vision_tower.encoder.blocks.%" G_GINT64_FORMAT, i);
    int n = block_norm(graph, op_name(prefix, "norm0").text, x, model->vision_hidden, vision_eps, FALSE);
    int a = vision_attention(graph, model, prefix, n, positions);
    x = block_add(graph, op_name(prefix, "add0").text, x, a);
    n = block_norm(graph, op_name(prefix, "norm1").text, x, model->vision_hidden, vision_eps, FALSE);
    return block_add(graph, op_name(prefix, "add1").text, x, vision_mlp(graph, model, op_name(prefix, "mlp").text, n));
}

static int vision_project(Graph *graph, const Model *model, int x)
{
    int64_t merged = model->vision_hidden * model->vision_merge * model->vision_merge;
    x = linear_add(graph, "mm_projector.proj.0", x, merged, FALSE);
    x = activation_add(graph, "mm_projector.act", &(ActivationAttr){.form = ACTIVATION_FORM_GELU}, x, -1);
    x = linear_add(graph, "mm_projector.proj.2", x, model->hidden, FALSE);
    return block_norm(graph, "mm_projector.post_norm", x, model->hidden, vision_eps, FALSE);
}

static int vision_build(Graph *graph, const Model *model, const ModelLayer *layer, const BlockOptions *options, int x)
{
    (void)layer;
    (void)options;
    Dtype wide = op_wide_dtype(graph);
    int grid = graph_add_input(graph, "grid", ROWS_PATCHES, 2, wide, FALSE);
    int positions = graph_add_input(graph, "positions", ROWS_PATCHES, 2, wide, FALSE);
    PatchEmbedAttr patch = {
        .patch_width = graph_tensor(graph, x)->width, .hidden = model->vision_hidden, .table = model->vision_pos_size};
    x = patch_embed_add(graph, "vision_tower.patch_embed", x, grid, &patch);
    for (int64_t i = 0; i < model->vision_layers; i++) {
        x = vision_block(graph, model, i, x, positions);
    }
    x = block_norm(graph, "vision_tower.encoder.final_layernorm", x, model->vision_hidden, vision_eps, FALSE);
    x = image_merge_add(graph, "vision_tower.merge", x, &(ImageMergeAttr){.merge = model->vision_merge, .frames = 1});
    return vision_project(graph, model, x);
}

extern const BlockClass block_vision_tower;
const BlockClass block_vision_tower = {.title = "vision tower and projector", .build = vision_build};
