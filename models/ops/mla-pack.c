#include "models/ops/mla-pack.h"

#include <string.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"
#include "models/values.h"

REAL_DECLARE(mla_pack_forward);
REAL_DECLARE(mla_pack_backward);

enum { IN_KV, IN_K_ROPE, OUT_K = 0, OUT_V };

gboolean REAL_NAME(mla_pack_forward)(const OpRun *run, GError **error)
{
    const MlaPackAttr *attr = run->view->op->attr;
    int64_t nope = attr->nope_dim;
    int64_t rope = attr->rope_dim;
    int64_t elem = op_in_elem_bytes(run->view, 0);
    (void)error;
    for (int64_t t = 0; t < values_rows(run, IN_KV); t++) {
        const real *shared = values_in(run, IN_K_ROPE) + t * rope;
        op_count_bytes(run, 0, elem * rope, 0);
        for (int64_t h = 0; h < attr->heads; h++) {
            int64_t head = t * attr->heads + h;
            const real *kv = values_in(run, IN_KV) + head * (nope + attr->v_dim);
            real *k = values_out(run, OUT_K) + head * (nope + rope);
            memcpy(k, kv, (size_t)nope * sizeof *k);
            memcpy(k + nope, shared, (size_t)rope * sizeof *k);
            memcpy(values_out(run, OUT_V) + head * attr->v_dim, kv + nope, (size_t)attr->v_dim * sizeof *k);
            op_count_bytes(run, 0, elem * (nope + attr->v_dim), elem * (nope + rope + attr->v_dim));
        }
    }
    return TRUE;
}

/* The gradient of one head's kv: its parts of dk and dv, or zero where none arrived. */
static void kv_gradient(const MlaPackAttr *attr, const real *dk, const real *dv, real *dkv)
{
    values_zero(dkv, attr->nope_dim + attr->v_dim);
    if (dk != NULL) {
        memcpy(dkv, dk, (size_t)attr->nope_dim * sizeof *dkv);
    }
    if (dv != NULL) {
        memcpy(dkv + attr->nope_dim, dv, (size_t)attr->v_dim * sizeof *dkv);
    }
}

gboolean REAL_NAME(mla_pack_backward)(const OpRun *run, GError **error)
{
    const MlaPackAttr *attr = run->view->op->attr;
    const real *dks = values_dout(run, OUT_K);
    const real *dvs = values_dout(run, OUT_V);
    int64_t k_dim = attr->nope_dim + attr->rope_dim;
    int64_t kv_dim = attr->nope_dim + attr->v_dim;
    int64_t elem = op_in_elem_bytes(run->view, 0);
    (void)error;
    values_zero_gradients(run);
    for (int64_t head = 0; head < values_rows(run, IN_KV) * attr->heads; head++) {
        const real *dk = dks != NULL ? dks + head * k_dim : NULL;
        if (run->din[IN_KV] != NULL) {
            kv_gradient(attr, dk, dvs != NULL ? dvs + head * attr->v_dim : NULL,
                        values_din(run, IN_KV) + head * kv_dim);
            op_count_bytes(run, 0, elem * kv_dim, elem * kv_dim);
        }
        if (run->din[IN_K_ROPE] != NULL) {
            real *dshared = values_din(run, IN_K_ROPE) + head / attr->heads * attr->rope_dim;
            for (int64_t j = 0; dk != NULL && j < attr->rope_dim; j++) {
                dshared[j] += dk[attr->nope_dim + j];
            }
            op_count_bytes(run, (double)attr->rope_dim, elem * attr->rope_dim,
                           head % attr->heads == 0 ? elem * attr->rope_dim : 0);
        }
    }
    return TRUE;
}

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
        op_cost_stream(ret_cost, WORK_CONCAT, 0, nope + op_in_bytes(view, 1), op_out_bytes(view, 0));
        op_cost_stream(ret_cost, WORK_STRIDED, 0, op_out_bytes(view, 1), op_out_bytes(view, 1));
        return;
    }
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, 0, op_in_bytes(view, 0) + op_in_bytes(view, 1),
                   op_out_bytes(view, 0) + op_out_bytes(view, 1));
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
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, adds, (dkv ? kv : 0) + (dkr ? rope : 0),
                       (dkv ? kv : 0) + (dkr ? op_in_bytes(view, 1) : 0));
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

static gboolean mla_pack_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        int64_t rows;
        MlaPackAttr attr;
        gboolean kv_grad, rope_grad;
    } samples[] = {{5, {3, 4, 2, 5}, TRUE, TRUE},
                   {1, {1, 1, 1, 1}, TRUE, TRUE},
                   {4, {2, 3, 3, 2}, TRUE, FALSE},
                   {3, {2, 1, 4, 3}, FALSE, TRUE}};
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    const MlaPackAttr *attr = &samples[idx].attr;
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->seq_len = samples[idx].rows;
    int64_t width = attr->heads * (attr->nope_dim + attr->v_dim);
    int kv = graph_add_input(graph, "kv", ROWS_TOKENS, width, graph->compute, samples[idx].kv_grad);
    int k_rope = graph_add_input(graph, "k_rope", ROWS_TOKENS, attr->rope_dim, graph->compute, samples[idx].rope_grad);
    MlaPackTensors t = mla_pack_add(graph, "pack", kv, k_rope, attr);
    graph_add_output(graph, t.k);
    graph_add_output(graph, t.v);
    return TRUE;
}

extern const OpClass op_mla_pack;
const OpClass op_mla_pack = {
    .id = "mla_pack",
    .title = "MLA key assembly",
    .saved = mla_pack_saved,
    .forward_cost = mla_pack_forward_cost,
    .backward_cost = mla_pack_backward_cost,
    .forward = REAL_KERNELS(mla_pack_forward),
    .backward = REAL_KERNELS(mla_pack_backward),
    .sample = mla_pack_sample,
};
#endif
