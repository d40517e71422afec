#include "models/ops/sigmoid-gate.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int sigmoid_gate_add(Graph *graph, const char *name, int x, int gate)
{
    const GraphTensor in = *graph_tensor(graph, x);
    g_assert(in.width % graph_tensor(graph, gate)->width == 0);
    int y = graph_add_tensor(graph, name, in.rows, in.width, in.dtype);
    Op *op = op_add(graph, OP_sigmoid_gate, name, NULL, 0);
    op_input(op, x);
    op_input(op, gate);
    op_output(graph, op, y);
    return y;
}

extern const OpClass op_sigmoid_gate;
const OpClass op_sigmoid_gate = {.id = "sigmoid_gate", .title = "sigmoid gate"};
#endif
