#include "models/ops/unpermute.h"

#include "models/op-name.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int unpermute_add(Graph *graph, const char *name, int yp, int weights, int order)
{
    UnpermuteAttr attr = {.top_k = graph_tensor(graph, order)->width};
    GraphTensor *in = graph_tensor(graph, yp);
    int out = graph_add_tensor(graph, op_name(name, "out").text, ROWS_TOKENS, in->width, in->dtype);
    Op *op = op_add(graph, OP_unpermute, name, &attr, sizeof attr);
    op_input(op, yp);
    op_input(op, weights);
    op_input(op, order);
    op_output(graph, op, out);
    return out;
}

extern const OpClass op_unpermute;
const OpClass op_unpermute = {.id = "unpermute", .title = "unpermute"};
#endif
