#include "models/ops/kda.h"

#include "models/delta-cost.h"
#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
/* Adds a parameter PREFIX.part of n values that stays fp32. */
static int kda_add_param(Graph *graph, const char *prefix, const char *part, int64_t n)
{
    int param = graph_add_param(graph, op_name(prefix, part).text, PARAM_VECTOR, n, 0, 0);
    graph_param(graph, param)->always_fp32 = TRUE;
    return param;
}

int kda_add(Graph *graph, const char *prefix, const int qkvzb[5], const KdaAttr *attr)
{
    OpName name = op_name(prefix, "kda");
    int a_log = kda_add_param(graph, prefix, "A_log", attr->value_heads);
    int dt_bias = kda_add_param(graph, prefix, "dt_bias", attr->value_heads * attr->key_dim);
    int o = graph_add_tensor(graph, name.text, ROWS_TOKENS, attr->value_heads * attr->value_dim, graph->compute);
    Op *op = op_add(graph, OP_kda, name.text, attr, sizeof *attr);
    for (int i = 0; i < 5; i++) {
        op_input(op, qkvzb[i]);
    }
    op_param(graph, op, a_log);
    op_param(graph, op, dt_bias);
    op_output(graph, op, o);
    return o;
}

enum { KDA_Q, KDA_K, KDA_V, KDA_Z, KDA_BETA, KDA_STATE, KDA_O = 0, KDA_LAST_STATE, KDA_A_LOG = 0, KDA_DT_BIAS };

static DeltaShape kda_shape(const OpView *view)
{
    const KdaAttr *attr = view->op->attr;
    return (DeltaShape){attr->heads, attr->value_heads, attr->key_dim, attr->value_dim,
                        attr->chunk > 0 ? attr->chunk : DELTA_CHUNK, TRUE};
}

/* kernels.md 2.6: normed q and k with their reciprocal norms, both pair matrices; v, z and beta by reference. */
static void kda_saved(const OpView *view, OpSaved *ret_saved)
{
    const KdaAttr *attr = view->op->attr;
    DeltaShape shape = kda_shape(view);
    Dtype dtype = op_in(view, KDA_Q)->dtype, wide = op_wide_dtype(view->graph);
    gboolean raw = attr->gate == KDA_GATE_NONE, has_state = view->op->n_inputs > KDA_STATE;
    if (view->op->eager) {
        *ret_saved = (OpSaved){.inputs = 1u << KDA_Q | 1u << KDA_K | 1u << KDA_Z | 1u << KDA_BETA};
        delta_eager_saved(&shape, ret_saved);
        return;
    }
    *ret_saved = (OpSaved){.inputs = 1u << KDA_V | 1u << KDA_Z | 1u << KDA_BETA};
    ret_saved->inputs |= (raw ? 1u << KDA_Q | 1u << KDA_K : 0) | (has_state ? 1u << KDA_STATE : 0);
    op_saved_aux(ret_saved, ROWS_TOKENS, shape.value_heads * shape.chunk, dtype);
    op_saved_aux(ret_saved, ROWS_TOKENS, shape.value_heads * shape.chunk, dtype);
    if (!raw) {
        op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads * shape.key_dim, dtype);
        op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads * shape.key_dim, dtype);
        op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads, wide);
        op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads, wide);
    }
}

static int64_t kda_saved_bytes(const OpView *view)
{
    OpSaved saved;
    int64_t bytes = 0;
    kda_saved(view, &saved);
    for (int i = 0; i < saved.n_aux; i++) {
        bytes += op_aux_bytes(&saved.aux[i], view->rows);
    }
    return bytes;
}

static int64_t kda_param_bytes(const OpView *view)
{
    DeltaShape shape = kda_shape(view);
    return dtype_bytes(op_wide_dtype(view->graph), shape.value_heads * (1 + shape.key_dim));
}

/* Outside the core: norms 3 d + 2 per head, gate 4 or 5 per channel, write strength 2, exp(A_log). */
static double kda_outer_flops(const OpView *view, const DeltaSums *sums, gboolean backward)
{
    const KdaAttr *attr = view->op->attr;
    double tokens = (double)sums->n_tokens, dk = (double)attr->key_dim;
    double heads = (double)attr->heads, value_heads = (double)attr->value_heads;
    if (attr->gate == KDA_GATE_NONE) {
        return 0;
    }
    double gate = attr->gate == KDA_GATE_BOUNDED ? 4 : 5;
    double norm = 3 * dk + 2;
    double strength = 2;
    if (backward) {
        gate += attr->gate == KDA_GATE_BOUNDED ? 9 : 6;
        norm = 5 * dk;
        strength += 4;
    }
    return tokens * (2 * heads * norm + value_heads * (dk * gate + strength)) + value_heads;
}

static void kda_work(const OpView *view, OpCost *cost, const DeltaSums *sums, const Work *amounts)
{
    DeltaShape shape = kda_shape(view);
    Work *work = op_cost_stream(cost, amounts->law, amounts->flops, amounts->read_bytes, amounts->write_bytes);
    work->m = sums->n_tokens;
    work->n = shape.value_heads;
    work->k = shape.key_dim;
    work->n_groups = sums->n_sequences;
}

static void kda_forward_cost(const OpView *view, OpCost *ret_cost)
{
    DeltaShape shape = kda_shape(view);
    DeltaSums sums = delta_sums(view->rows, shape.chunk);
    Work work = {.law = WORK_KDA_FORWARD, .read_bytes = kda_param_bytes(view), .write_bytes = kda_saved_bytes(view)};
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
    work.flops = delta_forward_flops(&shape, &sums) + kda_outer_flops(view, &sums, FALSE);
    kda_work(view, ret_cost, &sums, &work);
    ret_cost->workspace_bytes = delta_forward_workspace(&shape, &sums);
}

/* One fused pass that makes every gradient at once, needed or not: they share nearly all of the work. */
static void kda_backward_cost(const OpView *view, OpCost *ret_cost)
{
    DeltaShape shape = kda_shape(view);
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
    kda_saved(view, &saved);
    Work work = {.law = WORK_KDA_BACKWARD};
    work.read_bytes = kda_saved_bytes(view) + kda_param_bytes(view);
    work.write_bytes = op_trains_param(view, KDA_A_LOG) || op_trains_param(view, KDA_DT_BIAS) ? kda_param_bytes(view) : 0;
    for (int i = 0; i < view->op->n_inputs; i++) {
        work.read_bytes += saved.inputs >> i & 1u ? op_in_bytes(view, i) : 0;
        work.write_bytes += op_needs_input_grad(view, i) ? op_in_bytes(view, i) : 0;
    }
    for (int i = 0; i < view->op->n_outputs; i++) {
        work.read_bytes += op_out_bytes(view, i);
    }
    work.flops = delta_backward_flops(&shape, &sums) + kda_outer_flops(view, &sums, TRUE);
    kda_work(view, ret_cost, &sums, &work);
    ret_cost->workspace_bytes = delta_backward_workspace(&shape, &sums);
}

extern const OpClass op_kda;
const OpClass op_kda = {
    .id = "kda",
    .title = "KDA",
    .saved = kda_saved,
    .forward_cost = kda_forward_cost,
    .backward_cost = kda_backward_cost,
};
#endif
