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

static void mla_pack_saved(const OpView *view, OpSaved *ret_saved)
{
    (void)view;
    (void)ret_saved;
}

/* Eager: a concatenation with the broadcast shared key, and a dense copy of the values. */
static void mla_pack_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const MlaPackAttr *attr = view->op->attr;
    int64_t rows_bytes = op_in_elem_bytes(view, 0) * op_rows(view, op_in(view, 0)->rows);
    int64_t nope = rows_bytes * attr->heads * attr->nope_dim;
    if (view->op->eager) {
        op_cost_stream(ret_cost, WORK_STRIDED, 0, nope + op_in_bytes(view, 1), op_out_bytes(view, 0));
        op_cost_stream(ret_cost, WORK_STRIDED, 0, op_out_bytes(view, 1), op_out_bytes(view, 1));
        return;
    }
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, 0, op_in_bytes(view, 0) + op_in_bytes(view, 1), op_out_bytes(view, 0) + op_out_bytes(view, 1));
}

/*
 * The shared key's gradient is the sum over the heads. Eager: that sum, the concatenation of the parts of kv head by
 * head, and its copy token by token.
 */
static void mla_pack_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const MlaPackAttr *attr = view->op->attr;
    int64_t rows = op_rows(view, op_in(view, 0)->rows);
    gboolean dkv = op_needs_input_grad(view, 0);
    gboolean dkr = op_needs_input_grad(view, 1);
    double adds = dkr ? (double)(rows * attr->heads * attr->rope_dim) : 0;
    int64_t rope = op_in_elem_bytes(view, 0) * rows * attr->heads * attr->rope_dim;
    int64_t kv = op_in_bytes(view, 0);
    if (!dkv && !dkr) {
        return;
    }
    if (!view->op->eager) {
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, adds, (dkv ? kv : 0) + (dkr ? rope : 0), (dkv ? kv : 0) + (dkr ? op_in_bytes(view, 1) : 0));
        return;
    }
    if (dkr) {
        op_cost_stream(ret_cost, WORK_REDUCE, adds, rope, op_in_bytes(view, 1));
    }
    if (dkv) {
        op_cost_stream(ret_cost, WORK_STRIDED, 0, kv, kv)->n_launches = attr->heads > 1 ? 2 : 1;
        ret_cost->workspace_bytes = attr->heads > 1 ? kv : 0;
    }
}

extern const OpClass op_mla_pack;
const OpClass op_mla_pack = {
    .id = "mla_pack",
    .title = "MLA key assembly",
    .saved = mla_pack_saved,
    .forward_cost = mla_pack_forward_cost,
    .backward_cost = mla_pack_backward_cost,
};
#endif
