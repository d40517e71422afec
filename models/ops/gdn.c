#include "models/ops/gdn.h"

#include "models/delta-cost.h"
#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
/* Adds a parameter PREFIX.part of n values that stays fp32. */
static int gdn_add_param(Graph *graph, const char *prefix, const char *part, int64_t n)
{
    int param = graph_add_param(graph, op_name(prefix, part).text, PARAM_VECTOR, n, 0, 0);
    graph_param(graph, param)->always_fp32 = TRUE;
    return param;
}

int gdn_add(Graph *graph, const char *prefix, const int qkvab[5], const GdnAttr *attr)
{
    OpName name = op_name(prefix, "gdn");
    int a_log = gdn_add_param(graph, prefix, "A_log", attr->value_heads);
    int dt_bias = gdn_add_param(graph, prefix, "dt_bias", attr->value_heads);
    int o = graph_add_tensor(graph, name.text, ROWS_TOKENS, attr->value_heads * attr->value_dim, graph->compute);
    Op *op = op_add(graph, OP_gdn, name.text, attr, sizeof *attr);
    for (int i = 0; i < 5; i++) {
        op_input(op, qkvab[i]);
    }
    op_param(graph, op, a_log);
    op_param(graph, op, dt_bias);
    op_output(graph, op, o);
    return o;
}

enum { GDN_Q, GDN_K, GDN_V, GDN_A, GDN_BETA, GDN_STATE, GDN_O = 0, GDN_LAST_STATE, GDN_A_LOG = 0, GDN_DT_BIAS };

static DeltaShape gdn_shape(const OpView *view)
{
    const GdnAttr *attr = view->op->attr;
    return (DeltaShape){attr->heads, attr->value_heads, attr->key_dim, attr->value_dim,
                        attr->chunk > 0 ? attr->chunk : DELTA_CHUNK, FALSE};
}

/*
 * Normed q and k with their reciprocal norms; the products of q and k and of k with itself inside chunks, which the
 * value heads of a group share before their decays; v, a and beta by reference.
 */
static void gdn_saved(const OpView *view, OpSaved *ret_saved)
{
    DeltaShape shape = gdn_shape(view);
    Dtype dtype = op_in(view, GDN_Q)->dtype, wide = op_wide_dtype(view->graph);
    gboolean has_state = view->op->n_inputs > GDN_STATE;
    if (view->op->eager) {
        *ret_saved = (OpSaved){.inputs = 1u << GDN_Q | 1u << GDN_K | 1u << GDN_A | 1u << GDN_BETA};
        delta_eager_saved(&shape, ret_saved);
        return;
    }
    *ret_saved = (OpSaved){.inputs = 1u << GDN_V | 1u << GDN_A | 1u << GDN_BETA | (has_state ? 1u << GDN_STATE : 0)};
    op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads * shape.chunk, dtype);
    op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads * shape.chunk, dtype);
    op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads * shape.key_dim, dtype);
    op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads * shape.key_dim, dtype);
    op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads, wide);
    op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads, wide);
}

static int64_t gdn_saved_bytes(const OpView *view)
{
    OpSaved saved;
    int64_t bytes = 0;
    gdn_saved(view, &saved);
    for (int i = 0; i < saved.n_aux; i++) {
        bytes += op_aux_bytes(&saved.aux[i], view->rows);
    }
    return bytes;
}

static int64_t gdn_param_bytes(const OpView *view)
{
    DeltaShape shape = gdn_shape(view);
    return dtype_bytes(op_wide_dtype(view->graph), 2 * shape.value_heads);
}

/* Outside the core: norms 3 d + 2 per head; gate 5 and write strength 1 per value head, exp(A_log). */
static double gdn_outer_flops(const OpView *view, const DeltaSums *sums, gboolean backward)
{
    const GdnAttr *attr = view->op->attr;
    double tokens = (double)sums->n_tokens, dk = (double)attr->key_dim;
    double norm = backward ? 5 * dk : 3 * dk + 2;
    double gate = backward ? 5 + 6 : 5, strength = backward ? 1 + 3 : 1;
    return tokens * (2 * (double)attr->heads * norm + (double)attr->value_heads * (gate + strength)) +
           (double)attr->value_heads;
}

static void gdn_work(const OpView *view, OpCost *cost, const DeltaSums *sums, const Work *amounts)
{
    DeltaShape shape = gdn_shape(view);
    Work *work = op_cost_stream(cost, amounts->law, amounts->flops, amounts->read_bytes, amounts->write_bytes);
    work->m = sums->n_tokens;
    work->n = shape.value_heads;
    work->k = shape.key_dim;
    work->n_groups = sums->n_sequences;
}

static void gdn_forward_cost(const OpView *view, OpCost *ret_cost)
{
    DeltaShape shape = gdn_shape(view);
    DeltaSums sums = delta_sums(view->rows, shape.chunk);
    Work work = {.law = WORK_KDA_FORWARD, .read_bytes = gdn_param_bytes(view), .write_bytes = gdn_saved_bytes(view)};
    *ret_cost = (OpCost){0};
    if (view->op->eager) {
        delta_eager_forward(&shape, &sums, ret_cost);
        return;
    }
    for (int i = 0; i < view->op->n_inputs; i++) {
        work.read_bytes += op_in_bytes(view, i);
    }
    for (int i = 0; i < view->op->n_outputs; i++) {
        work.write_bytes += op_out_bytes(view, i);
    }
    work.flops = delta_forward_flops(&shape, &sums) + gdn_outer_flops(view, &sums, FALSE);
    gdn_work(view, ret_cost, &sums, &work);
    ret_cost->workspace_bytes = delta_forward_workspace(&shape, &sums);
}

/* One fused pass that makes every gradient at once, needed or not: they share nearly all of the work. */
static void gdn_backward_cost(const OpView *view, OpCost *ret_cost)
{
    DeltaShape shape = gdn_shape(view);
    DeltaSums sums = delta_sums(view->rows, shape.chunk);
    OpSaved saved;
    *ret_cost = (OpCost){0};
    if (!op_has_backward(view)) {
        return;
    }
    if (view->op->eager) {
        delta_eager_backward(&shape, &sums, ret_cost);
        return;
    }
    gdn_saved(view, &saved);
    Work work = {.law = WORK_KDA_BACKWARD};
    work.read_bytes = gdn_saved_bytes(view) + gdn_param_bytes(view);
    work.write_bytes = op_trains_param(view, GDN_A_LOG) || op_trains_param(view, GDN_DT_BIAS) ? gdn_param_bytes(view) : 0;
    for (int i = 0; i < view->op->n_inputs; i++) {
        work.read_bytes += saved.inputs >> i & 1u ? op_in_bytes(view, i) : 0;
        work.write_bytes += op_needs_input_grad(view, i) ? op_in_bytes(view, i) : 0;
    }
    for (int i = 0; i < view->op->n_outputs; i++) {
        work.read_bytes += op_out_bytes(view, i);
    }
    work.flops = delta_backward_flops(&shape, &sums) + gdn_outer_flops(view, &sums, TRUE);
    gdn_work(view, ret_cost, &sums, &work);
    ret_cost->workspace_bytes = delta_backward_workspace(&shape, &sums);
}

extern const OpClass op_gdn;
const OpClass op_gdn = {
    .id = "gdn",
    .title = "gated delta net",
    .saved = gdn_saved,
    .forward_cost = gdn_forward_cost,
    .backward_cost = gdn_backward_cost,
};
#endif
