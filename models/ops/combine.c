#include "models/ops/combine.h"

#include <string.h>

#include "models/op-name.h"
#include "models/ops/dispatch.h"
#include "models/real.h"

REAL_DECLARE(combine_forward);
REAL_DECLARE(combine_backward);

gboolean REAL_NAME(combine_forward)(const OpRun *run, GError **error)
{
    int64_t rows = op_rows(run->view, ROWS_RECEIVED);
    int64_t width = op_in(run->view, 0)->width;
    const real *in = run->in[0]->data;
    const int64_t *arrival = run->in[1]->data;
    real *out = run->out[0]->data;
    (void)error;
    for (int64_t i = 0; i < rows; i++) {
        memcpy(out + arrival[i] * width, in + i * width, (size_t)width * sizeof *out);
        op_count(run, 0, width + 1, width);
    }
    if (run->aux[0] != NULL) { /* the chain makes its own table of places, and keeps that */
        memcpy(run->aux[0]->data, arrival, (size_t)rows * sizeof *arrival);
    }
    return TRUE;
}

gboolean REAL_NAME(combine_backward)(const OpRun *run, GError **error)
{
    int64_t rows = op_rows(run->view, ROWS_RECEIVED);
    int64_t width = op_in(run->view, 0)->width;
    const int64_t *arrival = (run->aux[0] != NULL ? run->aux[0] : run->in[1])->data;
    (void)error;
    if (run->din[0] == NULL) {
        return TRUE;
    }
    real *din = run->din[0]->data;
    for (int64_t i = 0; i < rows; i++) {
        if (run->dout[0] != NULL) {
            memcpy(din + i * width, (const real *)run->dout[0]->data + arrival[i] * width, (size_t)width * sizeof *din);
        } else {
            memset(din + i * width, 0, (size_t)width * sizeof *din);
        }
        op_count(run, 0, width + 1, width);
    }
    return TRUE;
}

#if REAL_HAS_CLASS
int combine_add(Graph *graph, const char *name, int y, int arrival)
{
    CombineAttr attr = {.ep_size = graph->ep_size};
    if (graph->ep_size == 1) {
        return y;
    }
    int64_t width = graph_tensor(graph, y)->width;
    Dtype dtype = graph_tensor(graph, y)->dtype;
    int rows = graph_add_tensor(graph, op_name(name, "rows").text, ROWS_SLOTS, width, dtype);
    graph_tensor(graph, rows)->tag = MEM_DISPATCH;
    Op *op = op_add(graph, OP_combine, name, &attr, sizeof attr);
    op_input(op, y);
    op_input(op, arrival);
    op_output(graph, op, rows);
    return rows;
}

static int64_t combine_row_bytes(const OpView *view)
{
    return op_rows(view, ROWS_RECEIVED) * dtype_bytes(op_in(view, 0)->dtype, op_in(view, 0)->width);
}

static int64_t combine_idx_bytes(const OpView *view)
{
    return dtype_bytes(DTYPE_INT64, op_rows(view, ROWS_RECEIVED));
}

/* Eager: the inverse order, made here; fused: dispatch's own table. */
static void combine_saved(const OpView *view, OpSaved *ret_saved)
{
    *ret_saved = (OpSaved){0};
    if (!op_has_backward(view)) {
        return;
    }
    if (view->op->eager) {
        op_saved_aux(ret_saved, op_in(view, 0)->rows, 1, DTYPE_INT64);
    } else {
        ret_saved->inputs = 1u << 1;
    }
}

static void combine_forward_cost(const OpView *view, OpCost *ret_cost)
{
    int64_t bytes = combine_row_bytes(view);
    int64_t idx = combine_idx_bytes(view);
    *ret_cost = (OpCost){.workspace_bytes = bytes}; /* the rows about to be sent */
    if (view->op->eager) {
        op_cost_stream(ret_cost, WORK_COPY, 0, 0, idx);         /* arange */
        op_cost_stream(ret_cost, WORK_GATHER, 0, 2 * idx, idx); /* inverse[order] = arange */
    }
    Work *gather = op_cost_stream(ret_cost, WORK_GATHER, 0, bytes + idx, bytes);
    gather->m = op_rows(view, ROWS_RECEIVED);
    gather->n = op_in(view, 0)->width;
}

static gboolean combine_sample(int idx, Graph *graph, RowCounts *rows)
{
    DispatchTensors tensors;
    if (!dispatch_sample_add(idx, graph, rows, &tensors)) {
        return FALSE;
    }
    graph_add_output(graph, combine_add(graph, "combine", tensors.rows, tensors.arrival));
    return TRUE;
}

extern const OpClass op_combine;
const OpClass op_combine = {
    .id = "combine",
    .title = "combine all-to-all",
    .collective = OP_COLLECTIVE_ALL_TO_ALL,
    .keep = OP_KEEP_ALL_TO_ALL,
    .no_grad_inputs = 1u << 1,
    .saved = combine_saved,
    .forward_cost = combine_forward_cost,
    .backward_cost = dispatch_backward_cost,
    .forward = REAL_KERNELS(combine_forward),
    .backward = REAL_KERNELS(combine_backward),
    .sample = combine_sample,
};
#endif
