#include "workloads/run/flops.h"

static void add_graph(const Graph *graph, const RowCounts *rows, double times, ModelFlops *flops)
{
    for (int o = 0; o < graph_n_ops(graph); o++) {
        Op op = *graph_op(graph, o);
        OpView view = {graph, &op, rows};
        OpCost cost = {0};
        op.eager = FALSE;
        op_class(op.kind)->forward_cost(&view, &cost);
        flops->forward += times * op_cost_flops(&cost);
        if (op_has_backward(&view)) {
            cost.n_works = 0;
            op_class(op.kind)->backward_cost(&view, &cost);
            flops->backward += times * op_cost_flops(&cost);
        }
    }
}

ModelFlops model_flops_per_token(const Plan *plan, const ModelGraph *graphs)
{
    const Model *model = plan->model;
    RowCounts rows = {.seq_len = plan->seq_len};
    ModelFlops flops = {0, 0};
    int64_t tokens = plan->seq_len * plan->micro_batch;
    g_autofree int *times = g_new0(int, graphs->kinds->len);
    rows.rows[ROWS_ONE] = 1;
    rows.rows[ROWS_TOKENS] = tokens;
    rows.rows[ROWS_SLOTS] = rows.rows[ROWS_RECEIVED] = tokens * model->top_k;
    rows.rows[ROWS_EXPERTS] = model->n_experts;
    rows.rows[ROWS_LOCAL_EXPERTS] = model->n_experts / plan->ep;
    rows.rows[ROWS_PAIRS] = tokens * plan->seq_len;
    rows.rows[ROWS_SEQUENCES] = plan->micro_batch;
    for (int64_t i = 0; i < graphs->n_layers; i++) {
        times[graphs->layer_kind[i]]++;
    }
    add_graph(graphs->embedding, &rows, 1, &flops);
    for (guint k = 0; k < graphs->kinds->len; k++) {
        add_graph(g_ptr_array_index(graphs->kinds, k), &rows, times[k], &flops);
    }
    add_graph(graphs->head, &rows, 1, &flops);
    flops.forward /= (double)tokens;
    flops.backward /= (double)tokens;
    return flops;
}
