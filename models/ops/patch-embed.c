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

static void patch_embed_saved(const OpView *view, OpSaved *ret_saved)
{
    (void)view;
    *ret_saved = (OpSaved){.inputs = 3};
}

/*
 * kernels.md 11: the linear layer, then per element four weighted table entries (7) and their addition (1). Weights of
 * the interpolation: 6 per patch. Eager: the interpolated table and the sum are kernels of their own.
 */
static void patch_embed_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const PatchEmbedAttr *attr = view->op->attr;
    int64_t rows = op_rows(view, op_in(view, 0)->rows), out = op_out_bytes(view, 0);
    int64_t grid = op_in_bytes(view, 1);
    double n = (double)(rows * attr->hidden), weights = 6.0 * (double)rows;
    *ret_cost = (OpCost){0};
    op_cost_gemm(ret_cost, WORK_GEMM_NT, op_in(view, 0)->dtype, rows, attr->hidden, attr->patch_width);
    if (view->op->eager) {
        op_cost_stream(ret_cost, WORK_GATHER, 7 * n + weights, 4 * out + grid, out);
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, n, 2 * out, out);
        ret_cost->workspace_bytes = 2 * out;
        return;
    }
    op_cost_stream(ret_cost, WORK_GATHER, 8 * n + weights, 5 * out + grid, out);
}

/* Weight gradient by a product, table gradient by scattering the rows of dy; the pixels need none. */
static void patch_embed_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const PatchEmbedAttr *attr = view->op->attr;
    int64_t rows = op_rows(view, op_in(view, 0)->rows), out = op_out_bytes(view, 0);
    Dtype dtype = op_in(view, 0)->dtype;
    *ret_cost = (OpCost){0};
    if (op_needs_input_grad(view, 0)) {
        op_cost_gemm(ret_cost, WORK_GEMM_NN, dtype, rows, attr->patch_width, attr->hidden);
    }
    if (op_trains_param(view, 0)) {
        op_cost_gemm(ret_cost, WORK_GEMM_TN, dtype, attr->hidden, attr->patch_width, rows);
    }
    if (op_trains_param(view, 1)) {
        int64_t table = dtype_bytes(dtype, attr->table * attr->table * attr->hidden);
        double flops = 8.0 * (double)(rows * attr->hidden) + 6.0 * (double)rows;
        op_cost_stream(ret_cost, WORK_COPY, 0, 0, table);
        op_cost_stream(ret_cost, WORK_SCATTER_ADD, flops, 5 * out + op_in_bytes(view, 1), 4 * out);
    }
}

extern const OpClass op_patch_embed;
const OpClass op_patch_embed = {
    .id = "patch_embed",
    .title = "patch embedding",
    .no_grad_inputs = 1u << 1,
    .saved = patch_embed_saved,
    .forward_cost = patch_embed_forward_cost,
    .backward_cost = patch_embed_backward_cost,
};
#endif
