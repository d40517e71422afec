/* Mamba-2: one projection in, the scan with its convolution and norm, one projection out. */
#include "models/block.h"

#include "models/ops/mamba2.h"

static int mamba2_build(Graph *graph, const Model *model, const ModelLayer *layer, const BlockOptions *options, int x)
{
    (void)layer;
    Mamba2Attr attr = {.heads = model->mamba_heads,
                       .head_dim = model->mamba_head_dim,
                       .groups = model->mamba_groups,
                       .state = model->mamba_state,
                       .kernel = model->mamba_conv,
                       .chunk = model->mamba_chunk};
    int in =
        block_linear(graph, options, "self_attn.in_proj", x, mamba2_in_width(&attr), FALSE, options->lora_attention);
    int y = mamba2_add(graph, "self_attn", in, &attr);
    return block_linear(graph, options, "self_attn.out_proj", y, model->hidden, FALSE, options->lora_attention);
}

extern const BlockClass block_mamba2_layer;
const BlockClass block_mamba2_layer = {.title = "Mamba-2", .build = mamba2_build};
