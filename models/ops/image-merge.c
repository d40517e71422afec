#include "models/ops/image-merge.h"

#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int image_merge_add(Graph *graph, const char *name, int x, const ImageMergeAttr *attr)
{
    GraphTensor in = *graph_tensor(graph, x);
    int y = graph_add_tensor(graph, name, ROWS_IMAGE_TOKENS, attr->merge * attr->merge * in.width, in.dtype);
    Op *op = op_add(graph, OP_image_merge, name, attr, sizeof *attr);
    op_input(op, x);
    op_output(graph, op, y);
    return y;
}

static void image_merge_saved(const OpView *view, OpSaved *ret_saved)
{
    (void)view;
    *ret_saved = (OpSaved){0};
}

/* Fused: one pass that reads x and writes y; a clip's frames are added and the sum scaled. */
static void image_merge_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const ImageMergeAttr *attr = view->op->attr;
    int64_t in = op_in_bytes(view, 0), out = op_out_bytes(view, 0);
    double n_in = (double)graph_tensor_numel(op_in(view, 0), view->rows);
    *ret_cost = (OpCost){0};
    if (view->op->eager && attr->frames > 1) {
        op_cost_stream(ret_cost, WORK_REDUCE, n_in, in, out);
        op_cost_stream(ret_cost, WORK_STRIDED, 0, out, out);
        ret_cost->workspace_bytes = out;
        return;
    }
    op_cost_stream(ret_cost, WORK_STRIDED, attr->frames > 1 ? n_in : 0, in, out);
}

static void image_merge_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const ImageMergeAttr *attr = view->op->attr;
    int64_t in = op_in_bytes(view, 0), out = op_out_bytes(view, 0);
    double n_out = (double)graph_tensor_numel(op_out(view, 0), view->rows);
    *ret_cost = (OpCost){0};
    if (!op_needs_input_grad(view, 0)) {
        return;
    }
    if (view->op->eager && attr->frames > 1) {
        op_cost_stream(ret_cost, WORK_STRIDED, 0, out, out);
        op_cost_stream(ret_cost, WORK_STRIDED, n_out * (double)attr->frames, out, in);
        ret_cost->workspace_bytes = out;
        return;
    }
    op_cost_stream(ret_cost, WORK_STRIDED, attr->frames > 1 ? n_out : 0, out, in);
}

extern const OpClass op_image_merge;
const OpClass op_image_merge = {
    .id = "image_merge",
    .title = "image merge",
    .saved = image_merge_saved,
    .forward_cost = image_merge_forward_cost,
    .backward_cost = image_merge_backward_cost,
};
#endif
