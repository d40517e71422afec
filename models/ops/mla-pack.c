#include "models/ops/mla-pack.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
MlaPackTensors mla_pack_add(Graph *graph, const char *name, int kv, int k_rope, const MlaPackAttr *attr)
{
    const GraphTensor in = *graph_tensor(graph, kv);
    g_assert(in.width == attr->heads * (attr->nope_dim + attr->v_dim));
    g_assert(graph_tensor(graph, k_rope)->width == attr->rope_dim);
    int64_t k_width = attr->heads * (attr->nope_dim + attr->rope_dim);
    MlaPackTensors t = {
        .k = graph_add_tensor(graph, op_name(name, "k").text, in.rows, k_width, in.dtype),
        .v = graph_add_tensor(graph, op_name(name, "v").text, in.rows, attr->heads * attr->v_dim, in.dtype),
    };
    Op *op = op_add(graph, OP_mla_pack, name, attr, sizeof *attr);
    op_input(op, kv);
    op_input(op, k_rope);
    op_output(graph, op, t.k);
    op_output(graph, op, t.v);
    return t;
}

extern const OpClass op_mla_pack;
const OpClass op_mla_pack = {.id = "mla_pack", .title = "MLA key assembly"};
#endif
