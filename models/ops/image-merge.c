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

extern const OpClass op_image_merge;
const OpClass op_image_merge = {.id = "image_merge", .title = "image merge"};
#endif
