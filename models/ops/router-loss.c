#include "models/ops/router-loss.h"

#include "models/op-name.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int router_loss_add(Graph *graph, const char *name, int logits, int sel, const RouterLossAttr *attr)
{
    int loss = graph_add_tensor(graph, op_name(name, "loss").text, ROWS_ONE, 1, DTYPE_FP32);
    Op *op = op_add(graph, OP_router_loss, name, attr, sizeof *attr);
    op_input(op, logits);
    op_input(op, attr->kind == ROUTER_LOSS_Z ? -1 : sel);
    op_output(graph, op, loss);
    return loss;
}

extern const OpClass op_router_loss;
const OpClass op_router_loss = {.id = "router_loss", .title = "router loss"};
#endif
