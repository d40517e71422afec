#include "models/ops/dispatch.h"

#include <string.h>

#include "models/moe-tables.h"
#include "models/op-name.h"
#include "models/ops/moe-sample.h"
#include "models/ops/permute.h"
#include "models/real.h"

REAL_DECLARE(dispatch_forward);
REAL_DECLARE(dispatch_backward);

gboolean REAL_NAME(dispatch_forward)(const OpRun *run, GError **error)
{
    const DispatchAttr *attr = run->view->op->attr;
    int64_t rows = op_rows(run->view, ROWS_RECEIVED);
    int64_t width = op_out(run->view, 0)->width;
    const real *in = run->in[0]->data;
    real *out = run->out[0]->data;
    int64_t *arrival = run->out[1]->data;
    const int64_t *counts = run->in[1]->data;
    int64_t local = attr->experts / attr->ep_size;
    (void)error;
    g_assert(moe_arrival(counts, attr->ep_size, local, NULL, NULL) == rows);
    moe_arrival(counts, attr->ep_size, local, arrival, NULL);
    op_count(run, 0, attr->experts, 0);
    for (int64_t i = 0; i < rows; i++) {
        memcpy(out + i * width, in + arrival[i] * width, (size_t)width * sizeof *out);
        op_count(run, 0, width, width + 1);
    }
    return TRUE;
}

gboolean REAL_NAME(dispatch_backward)(const OpRun *run, GError **error)
{
    int64_t rows = op_rows(run->view, ROWS_RECEIVED);
    int64_t width = op_out(run->view, 0)->width;
    const int64_t *arrival = run->out[1]->data;
    (void)error;
    if (run->din[0] == NULL) {
        return TRUE;
    }
    real *din = run->din[0]->data;
    for (int64_t i = 0; i < rows; i++) {
        if (run->dout[0] != NULL) {
            memcpy(din + arrival[i] * width, (const real *)run->dout[0]->data + i * width, (size_t)width * sizeof *din);
        } else {
            memset(din + arrival[i] * width, 0, (size_t)width * sizeof *din);
        }
        op_count(run, 0, width + 1, width);
    }
    return TRUE;
}

#if REAL_HAS_CLASS
static DispatchTensors dispatch_add_all(Graph *graph, const char *name, int x, int counts, const DispatchAttr *attr)
{
    if (graph->ep_size == 1) {
        return (DispatchTensors){.rows = x, .arrival = -1};
    }
    int64_t width = graph_tensor(graph, x)->width;
    Dtype dtype = graph_tensor(graph, x)->dtype;
    DispatchTensors t = {
        .rows = graph_add_tensor(graph, op_name(name, "rows").text, ROWS_RECEIVED, width, dtype),
        .arrival = graph_add_tensor(graph, op_name(name, "arrival").text, ROWS_RECEIVED, 1, DTYPE_INT64),
    };
    graph_tensor(graph, t.rows)->tag = MEM_DISPATCH;
    graph_tensor(graph, t.arrival)->tag = MEM_DISPATCH;
    Op *op = op_add(graph, OP_dispatch, name, attr, sizeof *attr);
    op_input(op, x);
    op_input(op, counts);
    op_output(graph, op, t.rows);
    op_output(graph, op, t.arrival);
    return t;
}

gboolean dispatch_is_padded(const Op *op)
{
    return op->kind == OP_dispatch && ((const DispatchAttr *)op->attr)->padded;
}

/* Eager: for both lists of splits, one after the other. */
int dispatch_count_syncs(const Op *op)
{
    return op->kind == OP_dispatch && op->eager ? 2 : 1;
}

DispatchTensors dispatch_add(Graph *graph, const char *name, int x, int counts, int64_t experts)
{
    DispatchAttr attr = {.experts = experts, .ep_size = graph->ep_size};
    return dispatch_add_all(graph, name, x, counts, &attr);
}

DispatchTensors dispatch_add_padded(Graph *graph, const char *name, int x, int counts, int64_t experts)
{
    DispatchAttr attr = {.experts = experts, .ep_size = graph->ep_size, .padded = TRUE};
    return dispatch_add_all(graph, name, x, counts, &attr);
}

/* Received rows and their width; bytes of an element and of an index. */
typedef struct DispatchSize {
    int64_t rows, width, experts, local, b, idx;
} DispatchSize;

static DispatchSize dispatch_size(const OpView *view)
{
    const DispatchAttr *attr = view->op->attr;
    return (DispatchSize){
        .rows = op_rows(view, ROWS_RECEIVED),
        .width = op_out(view, 0)->width,
        .experts = attr->experts,
        .local = attr->experts / attr->ep_size,
        .b = dtype_bytes(op_out(view, 0)->dtype, 1),
        .idx = dtype_bytes(DTYPE_INT64, 1),
    };
}

static void dispatch_saved(const OpView *view, OpSaved *ret_saved)
{
    *ret_saved = (OpSaved){.outputs = op_has_backward(view) ? 1u << 1 : 0u};
}

/*
 * Counts to the host, labels of the local experts, their sort, one gather. The host waits twice in repeat_interleave (its
 * length, the sign of its counts).
 */
static void dispatch_forward_eager(const DispatchSize *s, OpCost *cost)
{
    int64_t counts = s->experts * s->idx;
    int64_t labels = s->rows * s->idx;
    op_cost_stream(cost, WORK_REDUCE, 0, counts, s->idx)->n_launches = 2; /* rows to and from each rank */
    op_cost_stream(cost, WORK_COPY, 0, 0, s->local * s->idx);             /* arange */
    op_cost_stream(cost, WORK_COPY, 0, s->local * s->idx, counts);        /* repeat */
    op_cost_stream(cost, WORK_REDUCE, 0, counts, counts);                 /* running sum */
    op_cost_stream(cost, WORK_ELEMENTWISE, 0, counts, s->experts);        /* not negative? */
    op_cost_stream(cost, WORK_REDUCE, 0, s->experts, 1);
    op_cost_stream(cost, WORK_GATHER, 0, 2 * counts, labels); /* repeat_interleave: places, labels */
    op_cost_stream(cost, WORK_GATHER, 0, 2 * labels, labels);
    Work *sort = op_cost_stream(cost, WORK_SORT, 0, labels, 2 * labels);
    sort->m = 1;
    sort->n = s->rows;
    int64_t bytes = s->rows * s->width * s->b;
    Work *gather = op_cost_stream(cost, WORK_GATHER, 0, bytes + labels, bytes);
    gather->m = s->rows;
    gather->n = s->width;
    op_cost_stream(cost, WORK_REDUCE, 0, counts, s->local * s->idx)->n_launches = 2; /* rows per expert, offsets */
    op_cost_stream(cost, WORK_COPY, 0, s->local * s->idx, s->local * 4);
}

static void dispatch_forward_cost(const OpView *view, OpCost *ret_cost)
{
    DispatchSize s = dispatch_size(view);
    int64_t bytes = s.rows * s.width * s.b;
    *ret_cost = (OpCost){0};
    gboolean padded = dispatch_is_padded(view->op), eager = view->op->eager && !padded, counts = !padded && view->op->chunk <= 1;
    if (eager) {
        dispatch_forward_eager(&s, ret_cost);
    } else {
        Work *gather = op_cost_stream(ret_cost, WORK_GATHER, 0, bytes + s.experts * s.idx, bytes + s.rows * s.idx);
        gather->m = s.rows;
        gather->n = s.width;
    }
    /* the sizes of all chunks come with the first's */
    ret_cost->n_host_syncs = (counts ? dispatch_count_syncs(view->op) : 0) + (eager ? 2 : 0);
    ret_cost->workspace_bytes = bytes; /* the rows as they arrived */
}

void dispatch_backward_cost(const OpView *view, OpCost *ret_cost)
{
    int64_t rows = op_rows(view, ROWS_RECEIVED);
    int64_t width = op_in(view, 0)->width;
    int64_t bytes = rows * dtype_bytes(op_in(view, 0)->dtype, width);
    gboolean eager = view->op->eager;
    *ret_cost = (OpCost){0};
    if (!op_needs_input_grad(view, 0)) {
        return;
    }
    ret_cost->workspace_bytes = bytes; /* the gradients about to be sent, or as they arrived */
    if (eager) {
        op_cost_stream(ret_cost, WORK_COPY, 0, 0, bytes); /* zeros, then index_add */
    }
    Work *move = op_cost_stream(ret_cost, eager ? WORK_SCATTER_ADD : WORK_GATHER, eager ? (double)(rows * width) : 0,
                                (eager ? 2 : 1) * bytes + dtype_bytes(DTYPE_INT64, rows), bytes);
    move->m = rows;
    move->n = width;
}

gboolean dispatch_sample_add(int idx, Graph *graph, RowCounts *rows, DispatchTensors *ret_tensors)
{
    static const MoeSample samples[] = {{5, 3, 6, 2, 0, FALSE}, {1, 4, 4, 2, 0, FALSE}, {7, 2, 8, 1, 0, FALSE}};
    static const int64_t ranks[] = {2, 4, 8};
    int x;
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    graph->ep_size = ranks[idx];
    RouterTensors t = moe_sample_add(graph, rows, &samples[idx], &x);
    int slots = permute_add(graph, "permute", x, t.order);
    *ret_tensors = dispatch_add(graph, "dispatch", slots, t.counts, samples[idx].experts);
    graph_add_output(graph, t.weights);
    return TRUE;
}

static gboolean dispatch_sample(int idx, Graph *graph, RowCounts *rows)
{
    DispatchTensors tensors;
    if (!dispatch_sample_add(idx, graph, rows, &tensors)) {
        return FALSE;
    }
    graph_add_output(graph, tensors.rows);
    return TRUE;
}

extern const OpClass op_dispatch;
const OpClass op_dispatch = {
    .id = "dispatch",
    .title = "dispatch all-to-all",
    .collective = OP_COLLECTIVE_ALL_TO_ALL,
    .to_experts = TRUE,
    .keep = OP_KEEP_ALL_TO_ALL,
    .no_grad_inputs = 1u << 1,
    .no_grad_outputs = 1u << 1,
    .saved = dispatch_saved,
    .forward_cost = dispatch_forward_cost,
    .backward_cost = dispatch_backward_cost,
    .forward = REAL_KERNELS(dispatch_forward),
    .backward = REAL_KERNELS(dispatch_backward),
    .sample = dispatch_sample,
};
#endif
