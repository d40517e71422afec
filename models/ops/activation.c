#include "models/ops/activation.h"

#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
gboolean activation_is_gated(ActivationForm form)
{
    return form == ACTIVATION_FORM_SWIGLU || form == ACTIVATION_FORM_SITU || form == ACTIVATION_FORM_GPTOSS;
}

int activation_add(Graph *graph, const char *name, const ActivationAttr *attr, int g, int u)
{
    GraphTensor in = *graph_tensor(graph, g);
    g_assert(activation_is_gated(attr->form) == (u >= 0));
    int y = graph_add_tensor(graph, name, in.rows, in.width, in.dtype);
    graph_tensor(graph, y)->tag = in.tag;
    Op *op = op_add(graph, OP_activation, name, attr, sizeof *attr);
    op_input(op, g);
    if (u >= 0) {
        op_input(op, u);
    }
    op_output(graph, op, y);
    return y;
}

extern const OpClass op_activation;
const OpClass op_activation = {.id = "activation", .title = "activation"};
#endif
