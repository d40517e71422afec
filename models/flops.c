#include "models/flops.h"

RowCounts model_row_counts(const Model *model, int64_t seq_len)
{
    RowCounts rows = {.seq_len = seq_len};
    rows.rows[ROWS_ONE] = 1;
    rows.rows[ROWS_TOKENS] = seq_len;
    rows.rows[ROWS_SLOTS] = seq_len * model->top_k;
    rows.rows[ROWS_RECEIVED] = rows.rows[ROWS_SLOTS];
    rows.rows[ROWS_EXPERTS] = model->n_experts;
    rows.rows[ROWS_LOCAL_EXPERTS] = model->n_experts;
    rows.rows[ROWS_PAIRS] = seq_len * seq_len;
    rows.rows[ROWS_SEQUENCES] = 1;
    return rows;
}

/* Of a cost, what counts as model FLOPs. */
static double cost_model_flops(const OpCost *cost)
{
    double sum = -cost->pointwise_flops;
    for (int i = 0; i < cost->n_works; i++) {
        const Work *work = &cost->works[i];
        sum += work_law_group(work->law) == WORK_GROUP_COMPUTE ? (work->flops - work->repeated_flops) * work->n_launches : 0;
    }
    return sum;
}

void graph_flops(const Graph *graph, const RowCounts *rows, double times, OpFlops *by_op)
{
    g_autofree OpCost *cost = g_new(OpCost, 1);
    for (int i = 0; i < graph_n_ops(graph); i++) {
        const Op *op = graph_op(graph, i);
        const OpClass *class = op_class(op->kind);
        const OpView view = {.graph = graph, .op = op, .rows = rows};
        OpFlops *sum = &by_op[op->kind];
        sum->n_ops += (int64_t)times;
        *cost = (OpCost){0};
        class->forward_cost(&view, cost);
        sum->forward += times * cost_model_flops(cost);
        if (op_has_backward(&view)) {
            *cost = (OpCost){0};
            class->backward_cost(&view, cost);
            sum->backward += times * cost_model_flops(cost);
        }
    }
}

/* Tokens of the chunks that travel apart, and what they make; together those of the whole. */
static void add_chunk_rows(const ModelGraph *graph, RowCounts *rows)
{
    int n = 0;
    for (guint k = 0; k < graph->kinds->len; k++) {
        n = MAX(n, ((const Graph *)g_ptr_array_index(graph->kinds, k))->n_chunks);
    }
    row_counts_cut(rows, n);
    for (int c = 1; c <= n; c++) {
        int64_t tokens = rows->rows[row_space_of_chunk(ROWS_TOKENS, c)], top_k = rows->rows[ROWS_SLOTS] / MAX(rows->rows[ROWS_TOKENS], 1);
        rows->rows[row_space_of_chunk(ROWS_SLOTS, c)] = rows->rows[row_space_of_chunk(ROWS_RECEIVED, c)] = tokens * top_k;
    }
}

void model_graph_flops(const ModelGraph *graph, const Model *model, int64_t seq_len, ModelFlops *ret_flops)
{
    RowCounts rows = model_row_counts(model, seq_len);
    add_chunk_rows(graph, &rows);
    g_autofree int *n_layers = g_new0(int, graph->kinds->len);
    *ret_flops = (ModelFlops){0};
    for (int64_t i = 0; i < graph->n_layers; i++) {
        n_layers[graph->layer_kind[i]]++;
    }
    graph_flops(graph->embedding, &rows, 1, ret_flops->by_op);
    for (guint k = 0; k < graph->kinds->len; k++) {
        graph_flops(g_ptr_array_index(graph->kinds, k), &rows, n_layers[k], ret_flops->by_op);
    }
    graph_flops(graph->head, &rows, 1, ret_flops->by_op);
    for (int i = 0; i < N_OPS; i++) {
        OpFlops *op = &ret_flops->by_op[i];
        op->forward /= (double)seq_len;
        op->backward /= (double)seq_len;
        ret_flops->forward += op->forward;
        ret_flops->backward += op->backward;
    }
}
