#include "models/ops/token-split.h"

#include <string.h>

#include "models/op-name.h"
#include "models/real.h"
#include "models/values.h"

REAL_DECLARE(token_split_forward);
REAL_DECLARE(token_split_backward);

/* Views in a framework: the copies are not counted. */
gboolean REAL_NAME(token_split_forward)(const OpRun *run, GError **error)
{
    const real *x = values_in(run, 0);
    (void)error;
    for (int i = 0; i < run->view->op->n_outputs; i++) {
        int64_t n = graph_tensor_numel(op_out(run->view, i), run->view->rows);
        memcpy(run->out[i]->data, x, (size_t)n * sizeof *x);
        x += n;
    }
    return TRUE;
}

gboolean REAL_NAME(token_split_backward)(const OpRun *run, GError **error)
{
    real *dx = values_din(run, 0);
    (void)error;
    for (int i = 0; dx != NULL && i < run->view->op->n_outputs; i++) {
        int64_t n = graph_tensor_numel(op_out(run->view, i), run->view->rows);
        if (run->dout[i] != NULL) {
            memcpy(dx, run->dout[i]->data, (size_t)n * sizeof *dx);
        } else {
            values_zero(dx, n);
        }
        op_count(run, 0, n, n);
        dx += n;
    }
    return TRUE;
}

#if REAL_HAS_CLASS
void token_split_add(Graph *graph, const char *name, int x, int n, int *ret_chunks)
{
    const GraphTensor in = *graph_tensor(graph, x);
    g_assert(n > 0 && n <= TOKEN_CHUNKS_MAX && in.rows == ROWS_TOKENS);
    for (int c = 0; c < n; c++) {
        ret_chunks[c] = graph_add_tensor(graph, op_name(name, "rows").text, row_space_of_chunk(ROWS_TOKENS, c + 1), in.width, in.dtype);
    }
    Op *op = op_add(graph, OP_token_split, name, NULL, 0);
    op_input(op, x);
    for (int c = 0; c < n; c++) {
        op_output(graph, op, ret_chunks[c]);
    }
}

static void token_split_saved(const OpView *view, OpSaved *ret_saved)
{
    (void)view;
    *ret_saved = (OpSaved){0};
}

static void token_split_forward_cost(const OpView *view, OpCost *ret_cost)
{
    (void)view;
    *ret_cost = (OpCost){0};
}

static void token_split_backward_cost(const OpView *view, OpCost *ret_cost)
{
    *ret_cost = (OpCost){0};
    if (op_needs_input_grad(view, 0)) {
        op_cost_stream(ret_cost, WORK_COPY, 0, op_in_bytes(view, 0), op_in_bytes(view, 0));
    }
}

const TokenSample *token_split_sample_size(int idx, RowCounts *rows)
{
    static const TokenSample samples[] = {{7, 3, 2}, {4, 1, 4}, {2, 5, 3}, {3, 2, 1}};
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return NULL;
    }
    rows->rows[ROWS_TOKENS] = rows->seq_len = samples[idx].rows;
    row_counts_cut(rows, samples[idx].n);
    return &samples[idx];
}

static gboolean token_split_sample(int idx, Graph *graph, RowCounts *rows)
{
    int chunks[TOKEN_CHUNKS_MAX];
    const TokenSample *sample = token_split_sample_size(idx, rows);
    if (sample == NULL) {
        return FALSE;
    }
    token_split_add(graph, "token_split", graph_add_input(graph, "x", ROWS_TOKENS, sample->width, graph->compute, TRUE),
                    sample->n, chunks);
    for (int c = 0; c < sample->n; c++) {
        graph_add_output(graph, chunks[c]);
    }
    return TRUE;
}

extern const OpClass op_token_split;
const OpClass op_token_split = {
    .id = "token_split",
    .title = "split by tokens",
    .views_input = TRUE,
    .saved = token_split_saved,
    .forward_cost = token_split_forward_cost,
    .backward_cost = token_split_backward_cost,
    .forward = REAL_KERNELS(token_split_forward),
    .backward = REAL_KERNELS(token_split_backward),
    .sample = token_split_sample,
};
#endif
