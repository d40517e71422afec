#include "models/delta-op.h"

#include "models/op-name.h"

/* Adds a parameter PREFIX.part of n values that stays fp32. */
static int add_param(Graph *graph, const char *prefix, const char *part, int64_t n)
{
    int param = graph_add_param(graph, op_name(prefix, part).text, PARAM_VECTOR, n, 0, 0);
    graph_param(graph, param)->always_fp32 = TRUE;
    return param;
}

int delta_op_add(Graph *graph, OpKind kind, const char *prefix, const int inputs[DELTA_N_IN], const DeltaShape *shape,
                 int64_t n_dt_bias, const void *attr, size_t attr_bytes)
{
    OpName name = op_name(prefix, op_class(kind)->id);
    int a_log = n_dt_bias > 0 ? add_param(graph, prefix, "A_log", shape->value_heads) : -1;
    int dt_bias = n_dt_bias > 0 ? add_param(graph, prefix, "dt_bias", n_dt_bias) : -1;
    int o = graph_add_tensor(graph, name.text, ROWS_TOKENS, shape->value_heads * shape->value_dim, graph->compute);
    Op *op = op_add(graph, kind, name.text, attr, attr_bytes);
    g_assert(shape->value_heads % shape->heads == 0);
    for (int i = 0; i < DELTA_N_IN; i++) {
        op_input(op, inputs[i]);
    }
    if (n_dt_bias > 0) {
        op_param(graph, op, a_log);
        op_param(graph, op, dt_bias);
    }
    op_output(graph, op, o);
    return o;
}

void delta_op_add_states(Graph *graph, Op *op, int before, int after)
{
    if (before >= 0) {
        op_input(op, before);
    }
    op_output(graph, op, after);
}

static const guint32 vectors = 1u << DELTA_IN_Q | 1u << DELTA_IN_K, gates = 1u << DELTA_IN_GATE | 1u << DELTA_IN_BETA;

static guint32 state_input(const OpView *view)
{
    return view->op->n_inputs > DELTA_IN_STATE ? 1u << DELTA_IN_STATE : 0;
}

void delta_op_saved(const OpView *view, const DeltaOp *op, OpSaved *ret_saved)
{
    if (!view->op->eager) {
        delta_fused_saved(view, op, ret_saved);
        return;
    }
    *ret_saved = (OpSaved){.inputs = vectors | gates | state_input(view)};
    delta_eager_saved(&op->shape, ret_saved);
}

void delta_fused_saved(const OpView *view, const DeltaOp *op, OpSaved *ret_saved)
{
    const DeltaShape *shape = &op->shape;
    Dtype dtype = op_in(view, DELTA_IN_Q)->dtype, wide = op_wide_dtype(view->graph);
    *ret_saved = (OpSaved){.inputs = 1u << DELTA_IN_V | gates | state_input(view)};
    ret_saved->inputs |= op->normed ? 0 : vectors;
    op_saved_aux(ret_saved, ROWS_TOKENS, op->pair_heads * shape->chunk, dtype);
    op_saved_aux(ret_saved, ROWS_TOKENS, op->pair_heads * shape->chunk, dtype);
    if (op->normed) {
        op_saved_aux(ret_saved, ROWS_TOKENS, shape->heads * shape->key_dim, dtype);
        op_saved_aux(ret_saved, ROWS_TOKENS, shape->heads * shape->key_dim, dtype);
        op_saved_aux(ret_saved, ROWS_TOKENS, shape->heads, wide);
        op_saved_aux(ret_saved, ROWS_TOKENS, shape->heads, wide);
    }
}

static int64_t aux_bytes(const OpView *view, const OpSaved *saved)
{
    int64_t bytes = 0;
    for (int i = 0; i < saved->n_aux; i++) {
        bytes += op_aux_bytes(&saved->aux[i], view->rows);
    }
    return bytes;
}

/* The parameters, or those of them that train. */
static int64_t param_bytes(const OpView *view, gboolean trained_only)
{
    int64_t n = 0;
    for (int i = 0; i < view->op->n_params; i++) {
        n += trained_only && !op_trains_param(view, i) ? 0 : graph_param_numel(op_weight(view, i));
    }
    return dtype_bytes(op_wide_dtype(view->graph), n);
}

static void add_work(OpCost *cost, const DeltaShape *shape, const DeltaSums *sums, const Work *amounts)
{
    Work *work = op_cost_stream(cost, amounts->law, amounts->flops, amounts->read_bytes, amounts->write_bytes);
    work->m = sums->n_tokens;
    work->n = shape->value_heads;
    work->k = shape->key_dim;
    work->n_groups = sums->n_sequences;
}

void delta_op_forward_cost(const OpView *view, const DeltaOp *op, OpCost *ret_cost)
{
    DeltaSums sums = delta_sums(view->rows, op->shape.chunk);
    OpSaved saved;
    *ret_cost = (OpCost){0};
    if (view->op->eager) {
        delta_eager_forward(&op->shape, &sums, ret_cost);
        return;
    }
    delta_op_saved(view, op, &saved);
    Work work = {
        .law = WORK_KDA_FORWARD, .read_bytes = param_bytes(view, FALSE), .write_bytes = aux_bytes(view, &saved)};
    for (int i = 0; i < view->op->n_inputs; i++) {
        work.read_bytes += op_in_bytes(view, i);
    }
    for (int i = 0; i < view->op->n_outputs; i++) {
        work.write_bytes += op_out_bytes(view, i);
    }
    work.flops = delta_forward_flops(&op->shape, &sums) + op->forward_flops;
    add_work(ret_cost, &op->shape, &sums, &work);
    ret_cost->workspace_bytes = delta_forward_workspace(&op->shape, &sums);
    ret_cost->n_host_ops = DELTA_HOST_FORWARD;
}

void delta_op_backward_cost(const OpView *view, const DeltaOp *op, OpCost *ret_cost)
{
    DeltaSums sums = delta_sums(view->rows, op->shape.chunk);
    OpSaved saved;
    *ret_cost = (OpCost){0};
    if (!op_has_backward(view)) {
        return;
    }
    if (view->op->eager) {
        delta_eager_backward(&op->shape, &sums, ret_cost);
        return;
    }
    delta_op_saved(view, op, &saved);
    Work work = {.law = WORK_KDA_BACKWARD};
    work.read_bytes = aux_bytes(view, &saved) + param_bytes(view, FALSE);
    work.write_bytes = param_bytes(view, TRUE);
    for (int i = 0; i < view->op->n_inputs; i++) {
        work.read_bytes += saved.inputs >> i & 1u ? op_in_bytes(view, i) : 0;
        work.write_bytes += op_needs_input_grad(view, i) ? op_in_bytes(view, i) : 0;
    }
    for (int i = 0; i < view->op->n_outputs; i++) {
        work.read_bytes += op_out_bytes(view, i);
    }
    work.flops = delta_backward_flops(&op->shape, &sums) + op->backward_flops;
    add_work(ret_cost, &op->shape, &sums, &work);
    ret_cost->workspace_bytes = delta_backward_workspace(&op->shape, &sums);
    ret_cost->n_host_ops = DELTA_HOST_BACKWARD;
}

void delta_op_sample_inputs(Graph *graph, const DeltaShape *shape, const char *gate, int64_t gate_width,
                            int ret_inputs[DELTA_N_IN])
{
    const char *const names[DELTA_N_IN] = {"q", "k", "v", gate, "beta"};
    int64_t key = shape->heads * shape->key_dim, value = shape->value_heads * shape->value_dim;
    const int64_t widths[DELTA_N_IN] = {key, key, value, gate_width, shape->value_heads};
    for (int i = 0; i < DELTA_N_IN; i++) {
        ret_inputs[i] = graph_add_input(graph, names[i], ROWS_TOKENS, widths[i], graph->compute, TRUE);
    }
}

void delta_op_sample_finish(Graph *graph, const DeltaShape *shape, const DeltaSample *sample, int o, RowCounts *rows)
{
    graph_add_output(graph, o);
    if (sample->states) {
        int64_t width = shape->value_heads * shape->key_dim * shape->value_dim;
        int before = graph_add_input(graph, "state", ROWS_SEQUENCES, width, graph->compute, TRUE);
        int after = graph_add_tensor(graph, "last_state", ROWS_SEQUENCES, width, graph->compute);
        delta_op_add_states(graph, graph_op(graph, 0), before, after);
        graph_add_output(graph, after);
    }
    rows->rows[ROWS_TOKENS] = sample->n_sequences * sample->seq_len;
    rows->rows[ROWS_SEQUENCES] = sample->n_sequences;
    rows->seq_len = sample->seq_len;
}
