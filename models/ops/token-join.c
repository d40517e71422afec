#include "models/ops/token-join.h"

#include <string.h>

#include "models/op-name.h"
#include "models/ops/token-split.h"
#include "models/real.h"
#include "models/values.h"

REAL_DECLARE(token_join_forward);
REAL_DECLARE(token_join_backward);

gboolean REAL_NAME(token_join_forward)(const OpRun *run, GError **error)
{
    real *y = values_out(run, 0);
    (void)error;
    for (int i = 0; i < run->view->op->n_inputs; i++) {
        int64_t n = graph_tensor_numel(op_in(run->view, i), run->view->rows);
        memcpy(y, values_in(run, i), (size_t)n * sizeof *y);
        op_count(run, 0, n, n);
        y += n;
    }
    return TRUE;
}

gboolean REAL_NAME(token_join_backward)(const OpRun *run, GError **error)
{
    const real *dy = values_dout(run, 0);
    (void)error;
    for (int i = 0; i < run->view->op->n_inputs; i++) {
        int64_t n = graph_tensor_numel(op_in(run->view, i), run->view->rows);
        if (run->din[i] != NULL && dy != NULL) {
            memcpy(run->din[i]->data, dy, (size_t)n * sizeof *dy);
            op_count(run, 0, n, n);
        } else if (run->din[i] != NULL) {
            values_zero(values_din(run, i), n);
        }
        dy = dy != NULL ? dy + n : NULL;
    }
    return TRUE;
}

#if REAL_HAS_CLASS
int token_join_add(Graph *graph, const char *name, const int *chunks, int n)
{
    const GraphTensor in = *graph_tensor(graph, chunks[0]);
    g_assert(n > 0 && n <= TOKEN_CHUNKS_MAX && row_space_kind(in.rows) == ROWS_TOKENS);
    int y = graph_add_tensor(graph, op_name(name, "out").text, ROWS_TOKENS, in.width, in.dtype);
    Op *op = op_add(graph, OP_token_join, name, NULL, 0);
    for (int c = 0; c < n; c++) {
        op_input(op, chunks[c]);
    }
    op_output(graph, op, y);
    return y;
}

static void token_join_saved(const OpView *view, OpSaved *ret_saved)
{
    (void)view;
    *ret_saved = (OpSaved){0};
}

static void token_join_forward_cost(const OpView *view, OpCost *ret_cost)
{
    *ret_cost = (OpCost){0};
    op_cost_stream(ret_cost, WORK_COPY, 0, op_out_bytes(view, 0), op_out_bytes(view, 0));
}

static void token_join_backward_cost(const OpView *view, OpCost *ret_cost)
{
    *ret_cost = (OpCost){0};
    for (int i = 0; i < view->op->n_inputs; i++) {
        if (op_needs_input_grad(view, i)) {
            op_cost_stream(ret_cost, WORK_COPY, 0, op_in_bytes(view, i), op_in_bytes(view, i));
        }
    }
}

static gboolean token_join_sample(int idx, Graph *graph, RowCounts *rows)
{
    int chunks[TOKEN_CHUNKS_MAX];
    const TokenSample *sample = token_split_sample_size(idx, rows);
    if (sample == NULL) {
        return FALSE;
    }
    for (int c = 0; c < sample->n; c++) {
        g_autofree char *name = g_strdup_printf("x%d", c);
        chunks[c] = graph_add_input(graph, name, row_space_of_chunk(ROWS_TOKENS, c + 1), sample->width, graph->compute, TRUE);
    }
    graph_add_output(graph, token_join_add(graph, "token_join", chunks, sample->n));
    return TRUE;
}

extern const OpClass op_token_join;
const OpClass op_token_join = {
    .id = "token_join",
    .title = "join of chunks",
    .saved = token_join_saved,
    .forward_cost = token_join_forward_cost,
    .backward_cost = token_join_backward_cost,
    .forward = REAL_KERNELS(token_join_forward),
    .backward = REAL_KERNELS(token_join_backward),
    .sample = token_join_sample,
};
#endif
