#include "models/ops/embedding.h"

#include <string.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"
#include "models/values.h"
#include "sim/base/error.h"

REAL_DECLARE(embedding_forward);
REAL_DECLARE(embedding_backward);

gboolean REAL_NAME(embedding_forward)(const OpRun *run, GError **error)
{
    const GraphParam *weight = op_weight(run->view, 0);
    const int64_t *ids = values_ids(run, 0);
    const real *table = values_param(run, 0);
    real *y = values_out(run, 0);
    int64_t hidden = weight->dims[1];
    for (int64_t t = 0; t < values_rows(run, 0); t++) {
        if (ids[t] < 0 || ids[t] >= weight->dims[0]) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                        "%s: token %" G_GINT64_FORMAT " has id %" G_GINT64_FORMAT "; ids are 0 to %" G_GINT64_FORMAT,
                        run->view->op->name, t, ids[t], weight->dims[0] - 1);
            return FALSE;
        }
        memcpy(y + t * hidden, table + ids[t] * hidden, (size_t)hidden * sizeof *y);
        op_count(run, 0, hidden + 1, hidden);
    }
    return TRUE;
}

/* Rows are added in token order; a row that no token has is zero. */
gboolean REAL_NAME(embedding_backward)(const OpRun *run, GError **error)
{
    const GraphParam *weight = op_weight(run->view, 0);
    const int64_t *ids = values_ids(run, 0);
    const real *dy = values_dout(run, 0);
    real *dtable = values_dparam(run, 0);
    int64_t hidden = weight->dims[1];
    (void)error;
    if (dtable == NULL || dy == NULL) {
        values_zero_gradients(run);
        return TRUE;
    }
    values_zero(dtable, graph_param_numel(weight));
    op_count(run, 0, 0, graph_param_numel(weight));
    for (int64_t t = 0; t < values_rows(run, 0); t++) {
        for (int64_t j = 0; j < hidden; j++) {
            dtable[ids[t] * hidden + j] += dy[t * hidden + j];
        }
        op_count(run, (double)hidden, hidden + 1, 0);
    }
    return TRUE;
}

#if REAL_HAS_CLASS
int embedding_add(Graph *graph, const char *name, int ids, int64_t vocab, int64_t hidden)
{
    int weight = graph_add_param(graph, op_name(name, "weight").text, PARAM_EMBEDDING, vocab, hidden, 0);
    int y = graph_add_tensor(graph, name, graph_tensor(graph, ids)->rows, hidden, graph->compute);
    Op *op = op_add(graph, OP_embedding, name, NULL, 0);
    op_input(op, ids);
    op_param(graph, op, weight);
    op_output(graph, op, y);
    return y;
}

static void embedding_saved(const OpView *view, OpSaved *ret_saved)
{
    ret_saved->inputs = op_trains_param(view, 0) ? 1 : 0;
}

static void embedding_forward_cost(const OpView *view, OpCost *ret_cost)
{
    int64_t rows = op_out_bytes(view, 0);
    Work *work = op_cost_stream(ret_cost, WORK_GATHER, 0, op_in_bytes(view, 0) + rows, rows);
    work->k = MIN(op_rows(view, op_in(view, 0)->rows), op_weight(view, 0)->dims[0]);
}

/*
 * Eager: the gradient table is zeroed, the ids are sorted, rows of equal id are added up in fp32 (at most one partial
 * sum per token, or per word if there are fewer) and written to the table.
 */
static void eager_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const GraphParam *weight = op_weight(view, 0);
    int64_t rows = op_rows(view, op_in(view, 0)->rows);
    int64_t ids = op_in_bytes(view, 0);
    int64_t n_sums = MIN(rows, weight->dims[0]);
    int64_t sums = dtype_bytes(DTYPE_FP32, n_sums * weight->dims[1]);
    int64_t elem = dtype_bytes(op_out(view, 0)->dtype, 1);
    op_cost_stream(ret_cost, WORK_COPY, 0, 0, op_weight_bytes(view, 0));
    Work *sort = op_cost_stream(ret_cost, WORK_SORT, 0, 2 * ids, 2 * ids);
    sort->m = 1;
    sort->n = rows;
    double adds = (double)rows * (double)weight->dims[1];
    op_cost_stream(ret_cost, WORK_SCATTER_ADD, adds, op_out_bytes(view, 0) + 2 * ids, sums);
    op_cost_stream(ret_cost, WORK_SCATTER_ADD, 0, sums, elem * n_sums * weight->dims[1]);
    ret_cost->workspace_bytes = sums + 4 * ids;
}

static void embedding_backward_cost(const OpView *view, OpCost *ret_cost)
{
    if (!op_trains_param(view, 0)) {
        return;
    }
    if (view->op->eager) {
        eager_backward_cost(view, ret_cost);
        return;
    }
    double adds = (double)graph_tensor_numel(op_out(view, 0), view->rows);
    op_cost_stream(ret_cost, WORK_SCATTER_ADD, adds, op_in_bytes(view, 0) + op_out_bytes(view, 0),
                   op_weight_bytes(view, 0));
}

static const struct {
    int64_t rows, vocab, hidden;
} samples[] = {{5, 7, 3}, {1, 1, 1}, {9, 4, 5}};

static gboolean embedding_sample(int idx, Graph *graph, RowCounts *rows)
{
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->seq_len = samples[idx].rows;
    int ids = graph_add_input(graph, "ids", ROWS_TOKENS, 1, DTYPE_INT64, FALSE);
    graph_add_output(graph, embedding_add(graph, "embed", ids, samples[idx].vocab, samples[idx].hidden));
    return TRUE;
}

/* The last word, others, and some twice. */
static void embedding_sample_fill(int idx, const OpView *view, Tensor *const *in, Tensor *const *param)
{
    (void)view;
    (void)param;
    for (int64_t t = 0; t < samples[idx].rows; t++) {
        tensor_set(in[0], t, (double)((samples[idx].vocab - 1 + t * t) % samples[idx].vocab));
    }
}

extern const OpClass op_embedding;
const OpClass op_embedding = {
    .id = "embedding",
    .title = "embedding lookup",
    .no_grad_inputs = 1,
    .saved = embedding_saved,
    .forward_cost = embedding_forward_cost,
    .backward_cost = embedding_backward_cost,
    .forward = REAL_KERNELS(embedding_forward),
    .backward = REAL_KERNELS(embedding_backward),
    .sample = embedding_sample,
    .sample_fill = embedding_sample_fill,
};
#endif
