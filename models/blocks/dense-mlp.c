/* Dense MLP, gated or not. */
#include "models/block.h"

static int dense_build(Graph *graph, const Model *model, const ModelLayer *layer, const BlockOptions *options, int x)
{
    return block_mlp(graph, model, options, "mlp", x, layer->ffn_width, FALSE);
}

extern const BlockClass block_dense_mlp;
const BlockClass block_dense_mlp = {.title = "dense MLP", .build = dense_build};
