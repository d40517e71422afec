#include "models/ops/rope.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int rope_add(Graph *graph, const char *name, int x, int positions, const RopeAttr *attr)
{
    const GraphTensor in = *graph_tensor(graph, x);
    g_assert(attr->heads * attr->head_dim == in.width && attr->rotary_dim > 0 && attr->rotary_dim % 2 == 0);
    g_assert(attr->offset >= 0 && attr->offset + attr->rotary_dim <= attr->head_dim && attr->layout != ROPE_NONE);
    g_assert(!attr->planar || (positions >= 0 && attr->layout == ROPE_INTERLEAVED));
    int y = graph_add_tensor(graph, name, in.rows, in.width, in.dtype);
    Op *op = op_add(graph, OP_rope, name, attr, sizeof *attr);
    op_input(op, x);
    op_input(op, positions);
    op_output(graph, op, y);
    return y;
}

extern const OpClass op_rope;
const OpClass op_rope = {.id = "rope", .title = "RoPE", .no_grad_inputs = 2};
#endif
