#include "models/ops/expert-bias.h"

#include <string.h>

#include "models/op-name.h"
#include "models/ops/grouped-gemm.h"
#include "models/real.h"

REAL_DECLARE(expert_bias_forward);
REAL_DECLARE(expert_bias_backward);

gboolean REAL_NAME(expert_bias_forward)(const OpRun *run, GError **error)
{
    const ExpertBiasAttr *attr = run->view->op->attr;
    int64_t local = attr->experts / run->view->graph->ep_size;
    int64_t width = op_in(run->view, 0)->width;
    const real *x = run->in[0]->data;
    const real *bias = run->param[0]->data;
    real *y = run->out[0]->data;
    int64_t *expert_of = run->aux[0] != NULL ? run->aux[0]->data : NULL;
    int64_t row = 0;
    (void)error;
    for (int64_t e = 0; e < local; e++) {
        int64_t end = row + grouped_gemm_rows(run->view, local, e);
        op_count(run, 0, end > row ? width : 0, 0);
        for (; row < end; row++) {
            for (int64_t c = 0; c < width; c++) {
                y[row * width + c] = x[row * width + c] + bias[e * width + c];
            }
            if (expert_of != NULL) {
                expert_of[row] = e;
            }
            op_count(run, (double)width, width, width);
        }
    }
    return TRUE;
}

/* The input's gradient is the output's, handed on without work (the copy here is the tensors' ownership). */
gboolean REAL_NAME(expert_bias_backward)(const OpRun *run, GError **error)
{
    const ExpertBiasAttr *attr = run->view->op->attr;
    int64_t local = attr->experts / run->view->graph->ep_size;
    int64_t n = op_rows(run->view, ROWS_RECEIVED);
    int64_t width = op_in(run->view, 0)->width;
    g_autofree real *zero = run->dout[0] == NULL ? g_new0(real, (gsize)(n * width)) : NULL;
    const real *dy = zero != NULL ? zero : run->dout[0]->data;
    (void)error;
    if (run->din[0] != NULL) {
        memcpy(run->din[0]->data, dy, (size_t)(n * width) * sizeof *dy);
    }
    if (run->dparam[0] == NULL) {
        return TRUE;
    }
    real *dbias = run->dparam[0]->data;
    const int64_t *expert_of = run->aux[0] != NULL ? run->aux[0]->data : NULL; /* of each row: the chain's index */
    int64_t row = 0;
    memset(dbias, 0, (size_t)(local * width) * sizeof *dbias);
    op_count(run, 0, 0, local * width);
    for (int64_t e = 0; e < local; e++) {
        int64_t end = row + grouped_gemm_rows(run->view, local, e);
        for (; row < end; row++) {
            for (int64_t c = 0; c < width; c++) {
                dbias[(expert_of != NULL ? expert_of[row] : e) * width + c] += dy[row * width + c];
            }
            op_count(run, (double)width, width, 0);
        }
    }
    return TRUE;
}

#if REAL_HAS_CLASS
int expert_bias_add(Graph *graph, const char *name, int x, int64_t experts)
{
    ExpertBiasAttr attr = {.experts = experts};
    int64_t width = graph_tensor(graph, x)->width;
    int bias = graph_add_param(graph, name, PARAM_VECTOR, experts, width, 0);
    graph_param(graph, bias)->split = PARAM_EXPERT;
    int y = graph_add_tensor(graph, op_name(name, "out").text, ROWS_RECEIVED, width, graph_tensor(graph, x)->dtype);
    Op *op = op_add(graph, OP_expert_bias, name, &attr, sizeof attr);
    op_input(op, x);
    op_param(graph, op, bias);
    op_output(graph, op, y);
    return y;
}

/* Local experts that have rows: the others' vectors are not read. */
static int64_t expert_bias_busy(const OpView *view)
{
    const ExpertBiasAttr *attr = view->op->attr;
    return grouped_gemm_busy(view, attr->experts / view->graph->ep_size);
}

static void expert_bias_saved(const OpView *view, OpSaved *ret_saved)
{
    *ret_saved = (OpSaved){0};
    if (view->op->eager && op_trains_param(view, 0)) { /* expert of each row, for the gather of vectors */
        op_saved_aux(ret_saved, op_in(view, 0)->rows, 1, DTYPE_INT64);
    }
}

static void expert_bias_forward_cost(const OpView *view, OpCost *ret_cost)
{
    int64_t rows = op_in_bytes(view, 0);
    int64_t idx = dtype_bytes(DTYPE_INT64, op_rows(view, ROWS_RECEIVED));
    int64_t width = op_in(view, 0)->width;
    double n = (double)graph_tensor_numel(op_in(view, 0), view->rows);
    *ret_cost = (OpCost){0};
    if (view->op->eager) {
        op_cost_stream(ret_cost, WORK_GATHER, 0, 0, idx);           /* repeat_interleave of expert numbers */
        op_cost_stream(ret_cost, WORK_GATHER, 0, rows + idx, rows); /* a vector for each row */
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, n, 2 * rows, rows);
        ret_cost->workspace_bytes = rows;
        return;
    }
    int64_t vectors = expert_bias_busy(view) * dtype_bytes(op_in(view, 0)->dtype, width);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, n, rows + vectors, rows);
}

/* The input's gradient is the output's; only the vectors' has to be made. */
static void expert_bias_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const ExpertBiasAttr *attr = view->op->attr;
    int64_t rows = op_in_bytes(view, 0);
    int64_t width = op_in(view, 0)->width;
    int64_t vectors = attr->experts / view->graph->ep_size * dtype_bytes(op_in(view, 0)->dtype, width);
    double n = (double)graph_tensor_numel(op_in(view, 0), view->rows);
    *ret_cost = (OpCost){0};
    if (!op_trains_param(view, 0)) {
        return;
    }
    if (view->op->eager) {
        op_cost_stream(ret_cost, WORK_COPY, 0, 0, vectors); /* zeros, then index_add */
        int64_t idx = dtype_bytes(DTYPE_INT64, op_rows(view, ROWS_RECEIVED));
        op_cost_stream(ret_cost, WORK_SCATTER_ADD, n, 2 * rows + idx, rows);
        return;
    }
    op_cost_stream(ret_cost, WORK_REDUCE, n, rows, vectors);
}

/* Rows of experts: uneven, with empty ones, all in one, even. */
static gboolean expert_bias_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const int64_t uneven[] = {3, 0, 1, 4};
    static const int64_t one[] = {0, 5, 0};
    static const struct {
        int64_t experts, rows, in;
        const int64_t *split;
    } samples[] = {{4, 8, 3, uneven}, {3, 5, 4, one}, {2, 7, 1, NULL}, {5, 3, 2, NULL}};
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    rows->rows[ROWS_EXPERTS] = samples[idx].experts;
    rows->rows[ROWS_LOCAL_EXPERTS] = samples[idx].experts;
    rows->rows[ROWS_RECEIVED] = samples[idx].rows;
    rows->local_expert_rows = samples[idx].split;
    int x = graph_add_input(graph, "x", ROWS_RECEIVED, samples[idx].in, graph->compute, TRUE);
    graph_add_output(graph, expert_bias_add(graph, "bias", x, samples[idx].experts));
    return TRUE;
}

extern const OpClass op_expert_bias;
const OpClass op_expert_bias = {
    .id = "expert_bias",
    .title = "expert bias",
    .saved = expert_bias_saved,
    .forward_cost = expert_bias_forward_cost,
    .backward_cost = expert_bias_backward_cost,
    .forward = REAL_KERNELS(expert_bias_forward),
    .backward = REAL_KERNELS(expert_bias_backward),
    .sample = expert_bias_sample,
};
#endif
