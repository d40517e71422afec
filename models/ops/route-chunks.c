#include "models/ops/route-chunks.h"

#include "models/op-name.h"
#include "models/ops/moe-sample.h"
#include "models/real.h"

enum { IN_ORDER, IN_COUNTS };

REAL_DECLARE(route_chunks_forward);
REAL_DECLARE(route_chunks_backward);

gboolean REAL_NAME(route_chunks_forward)(const OpRun *run, GError **error)
{
    const OpView *view = run->view;
    int n = view->op->n_outputs / 2;
    int64_t k = op_in(view, IN_ORDER)->width, experts = op_rows(view, ROWS_EXPERTS), n_choices = op_rows(view, ROWS_TOKENS) * k;
    const int64_t *order = run->in[IN_ORDER]->data, *counts = run->in[IN_COUNTS]->data;
    int64_t first = 0; /* choice of the chunk */
    (void)error;
    for (int c = 0; c < n; c++) {
        int64_t size = graph_tensor_numel(op_out(view, c), view->rows), slot = 0, filled = 0;
        int64_t *own_order = run->out[c]->data, *own_counts = run->out[n + c]->data;
        for (int64_t e = 0; e < experts; e++) {
            own_counts[e] = -filled;
            for (int64_t i = 0; i < counts[e]; i++, slot++) {
                if (order[slot] >= first && order[slot] < first + size) {
                    own_order[filled++] = order[slot] - first;
                }
            }
            own_counts[e] += filled;
        }
        for (int64_t s = filled; s < size; s++) {
            own_order[s] = -1;
        }
        first += size;
    }
    op_count(run, 0, n_choices + experts, n_choices + n * experts);
    return TRUE;
}

/* Indices have no gradients. */
gboolean REAL_NAME(route_chunks_backward)(const OpRun *run, GError **error)
{
    (void)run;
    (void)error;
    return TRUE;
}

#if REAL_HAS_CLASS
void route_chunks_add(Graph *graph, const char *name, int order, int counts, int n, int *ret_order, int *ret_counts)
{
    int64_t k = graph_tensor(graph, order)->width;
    g_assert(n > 0 && n <= TOKEN_CHUNKS_MAX && 2 * n <= OP_OUTPUTS_MAX);
    for (int c = 0; c < n; c++) {
        ret_order[c] = graph_add_tensor(graph, op_name(name, "order").text, row_space_of_chunk(ROWS_TOKENS, c + 1), k, DTYPE_INT64);
        ret_counts[c] = graph_add_tensor(graph, op_name(name, "counts").text, ROWS_EXPERTS, 1, DTYPE_INT64);
    }
    Op *op = op_add(graph, OP_route_chunks, name, NULL, 0);
    op_input(op, order);
    op_input(op, counts);
    for (int i = 0; i < 2 * n; i++) {
        op_output(graph, op, i < n ? ret_order[i] : ret_counts[i - n]);
    }
}

static void route_chunks_saved(const OpView *view, OpSaved *ret_saved)
{
    (void)view;
    *ret_saved = (OpSaved){0};
}

/* Fused: one pass over the slots. Eager: each chunk's choices are labelled, sorted and counted anew. */
static void route_chunks_forward_cost(const OpView *view, OpCost *ret_cost)
{
    int n = view->op->n_outputs / 2;
    int64_t order = op_in_bytes(view, IN_ORDER), counts = op_in_bytes(view, IN_COUNTS);
    *ret_cost = (OpCost){0};
    if (!view->op->eager) {
        op_cost_stream(ret_cost, WORK_GATHER, 0, order + counts, order + n * counts);
        return;
    }
    for (int c = 0; c < n; c++) {
        int64_t labels = op_out_bytes(view, c);
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, 0, labels, labels);
        Work *sort = op_cost_stream(ret_cost, WORK_SORT, 0, labels, 2 * labels);
        sort->m = 1;
        sort->n = graph_tensor_numel(op_out(view, c), view->rows);
        op_cost_stream(ret_cost, WORK_REDUCE, 0, labels, counts);
    }
}

static void route_chunks_backward_cost(const OpView *view, OpCost *ret_cost)
{
    (void)view;
    *ret_cost = (OpCost){0};
}

static gboolean route_chunks_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const MoeSample samples[] = {{5, 3, 4, 2, 0, FALSE}, {1, 4, 6, 2, 0, FALSE}, {7, 2, 3, 3, 0, FALSE}, {8, 3, 2, 1, 0.7, FALSE}};
    static const int n_chunks[] = {2, 3, 8, 4};
    int x, order[TOKEN_CHUNKS_MAX], counts[TOKEN_CHUNKS_MAX];
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    RouterTensors t = moe_sample_add(graph, rows, &samples[idx], &x);
    row_counts_cut(rows, n_chunks[idx]);
    route_chunks_add(graph, "route_chunks", t.order, t.counts, n_chunks[idx], order, counts);
    graph_add_output(graph, t.weights);
    return TRUE;
}

extern const OpClass op_route_chunks;
const OpClass op_route_chunks = {
    .id = "route_chunks",
    .title = "routes by chunk",
    .no_grad_inputs = 1u << IN_ORDER | 1u << IN_COUNTS,
    .no_grad_outputs = (1u << OP_OUTPUTS_MAX) - 1,
    .saved = route_chunks_saved,
    .forward_cost = route_chunks_forward_cost,
    .backward_cost = route_chunks_backward_cost,
    .forward = REAL_KERNELS(route_chunks_forward),
    .backward = REAL_KERNELS(route_chunks_backward),
    .sample = route_chunks_sample,
};
#endif
