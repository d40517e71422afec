#include "models/ops/patch-embed.h"

#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int patch_embed_add(Graph *graph, const char *prefix, int patches, int grid, const PatchEmbedAttr *attr)
{
    char name[GRAPH_NAME_MAX];
    g_assert(graph_tensor(graph, patches)->width == attr->patch_width && graph_tensor(graph, grid)->width == 2);
    g_snprintf(name, sizeof name, "%s.proj.weight", prefix);
    int weight = graph_add_param(graph, name, PARAM_MATRIX, attr->hidden, attr->patch_width, 0);
    g_snprintf(name, sizeof name, "%s.pos_emb.weight", prefix);
    int table = graph_add_param(graph, name, PARAM_EMBEDDING, attr->table * attr->table, attr->hidden, 0);
    int y = graph_add_tensor(graph, prefix, graph_tensor(graph, patches)->rows, attr->hidden, graph->compute);
    Op *op = op_add(graph, OP_patch_embed, prefix, attr, sizeof *attr);
    op_input(op, patches);
    op_input(op, grid);
    op_param(graph, op, weight);
    op_param(graph, op, table);
    op_output(graph, op, y);
    return y;
}

extern const OpClass op_patch_embed;
const OpClass op_patch_embed = {.id = "patch_embed", .title = "patch embedding", .no_grad_inputs = 1u << 1};
#endif
