#include "models/ops/token-dispatch.h"

#include <string.h>

#include "models/op-name.h"
#include "models/real.h"

enum { IN_X, IN_ORDER, IN_COUNTS };

REAL_DECLARE(token_dispatch_forward);
REAL_DECLARE(token_dispatch_backward);

/* Slots by (local expert, row, choice) from the table of choices; the rest of the order is -1. */
static inline void local_order(const OpRun *run, int64_t n_choices)
{
    const TokenDispatchAttr *attr = run->view->op->attr;
    int64_t local = attr->experts / attr->ep_size, n = 0;
    const int64_t *table = run->in[IN_ORDER]->data;
    int64_t *order = run->out[1]->data;
    g_autofree int64_t *next = g_new0(int64_t, local + 1); /* place of the next slot of each expert */
    for (int64_t i = 0; i < n_choices; i++) {
        g_assert(table[i] < local);
        if (table[i] >= 0) {
            next[table[i] + 1]++;
            n++;
        }
    }
    for (int64_t e = 0; e < local; e++) {
        next[e + 1] += next[e];
    }
    for (int64_t i = 0; i < n_choices; i++) {
        if (table[i] >= 0) {
            order[next[table[i]]++] = i;
        }
    }
    for (int64_t i = n; i < n_choices; i++) {
        order[i] = -1;
    }
}

gboolean REAL_NAME(token_dispatch_forward)(const OpRun *run, GError **error)
{
    int64_t rows = op_rows(run->view, ROWS_ARRIVED);
    int64_t n_choices = rows * op_in(run->view, IN_ORDER)->width;
    (void)error;
    memcpy(run->out[0]->data, run->in[IN_X]->data, (size_t)(rows * op_out(run->view, 0)->width) * sizeof(real));
    if (!token_dispatch_follows(run->view->op)) {
        local_order(run, n_choices);
        op_count(run, 0, n_choices, n_choices);
    }
    return TRUE;
}

gboolean REAL_NAME(token_dispatch_backward)(const OpRun *run, GError **error)
{
    size_t bytes = (size_t)(op_rows(run->view, ROWS_ARRIVED) * op_out(run->view, 0)->width) * sizeof(real);
    (void)error;
    if (run->din[IN_X] != NULL && run->dout[0] != NULL) {
        memcpy(run->din[IN_X]->data, run->dout[0]->data, bytes);
    } else if (run->din[IN_X] != NULL) {
        memset(run->din[IN_X]->data, 0, bytes);
    }
    return TRUE;
}

#if REAL_HAS_CLASS
gboolean token_dispatch_follows(const Op *op)
{
    return op->kind == OP_token_dispatch && ((const TokenDispatchAttr *)op->attr)->follows;
}

gboolean token_dispatch_to_all(const Op *op)
{
    return op->kind == OP_token_dispatch && ((const TokenDispatchAttr *)op->attr)->to_all;
}

TokenDispatchTensors token_dispatch_add(Graph *graph, const char *name, int x, int order, int counts,
                                        const TokenDispatchAttr *attr)
{
    const GraphTensor *in = graph_tensor(graph, x);
    int64_t width = in->width, k = graph_tensor(graph, order)->width;
    g_assert(graph->ep_size > 1);
    TokenDispatchTensors t = {
        .rows = graph_add_tensor(graph, op_name(name, "rows").text, ROWS_ARRIVED, width, in->dtype),
        .order = attr->follows ? -1 : graph_add_tensor(graph, op_name(name, "order").text, ROWS_ARRIVED, k, DTYPE_INT64),
    };
    graph_tensor(graph, t.rows)->tag = MEM_DISPATCH;
    Op *op = op_add(graph, OP_token_dispatch, name, attr, sizeof *attr);
    op_input(op, x);
    op_input(op, order);
    op_input(op, counts);
    op_output(graph, op, t.rows);
    if (t.order >= 0) {
        graph_tensor(graph, t.order)->tag = MEM_DISPATCH;
        op_output(graph, op, t.order);
    }
    return t;
}

static int64_t token_dispatch_bytes(const OpView *view)
{
    return op_rows(view, ROWS_ARRIVED) * dtype_bytes(op_out(view, 0)->dtype, op_out(view, 0)->width);
}

static void token_dispatch_saved(const OpView *view, OpSaved *ret_saved)
{
    (void)view;
    *ret_saved = (OpSaved){0};
}

/* The table of local slots. The host waits for the number of rows that arrive, unless it knows it. */
static void token_dispatch_forward_cost(const OpView *view, OpCost *ret_cost)
{
    int64_t table = op_rows(view, ROWS_ARRIVED) * dtype_bytes(DTYPE_INT64, op_in(view, IN_ORDER)->width);
    *ret_cost = (OpCost){.workspace_bytes = token_dispatch_bytes(view)}; /* the rows as they arrived */
    if (!token_dispatch_follows(view->op)) {
        op_cost_stream(ret_cost, WORK_GATHER, 0, table, table);
        ret_cost->n_host_syncs = view->op->chunk <= 1 ? 1 : 0; /* those of all chunks come with the first's */
    }
}

static void token_dispatch_backward_cost(const OpView *view, OpCost *ret_cost)
{
    *ret_cost = (OpCost){0};
    if (op_needs_input_grad(view, IN_X)) {
        ret_cost->workspace_bytes = token_dispatch_bytes(view); /* the gradients about to be sent back */
    }
}

/* One rank stands for all: some of the tokens of all arrive, with some of their choices. */
static const struct TokenSample {
    int64_t rows, width, experts, ep_size, top_k;
    gboolean follows;
} samples[] = {{5, 3, 8, 2, 2, FALSE}, {1, 4, 4, 4, 1, FALSE}, {7, 2, 6, 2, 3, TRUE}, {9, 3, 12, 3, 4, FALSE}};

static gboolean token_dispatch_sample(int idx, Graph *graph, RowCounts *rows)
{
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    const struct TokenSample *sample = &samples[idx];
    TokenDispatchAttr attr = {.experts = sample->experts, .ep_size = sample->ep_size, .follows = sample->follows};
    graph->ep_size = sample->ep_size;
    rows->rows[ROWS_TOKENS] = rows->rows[ROWS_ARRIVED] = sample->rows;
    rows->rows[ROWS_EXPERTS] = sample->experts;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, sample->width, graph->compute, TRUE);
    int order = graph_add_input(graph, "order", ROWS_TOKENS, sample->top_k, DTYPE_INT64, FALSE);
    int counts = graph_add_input(graph, "counts", ROWS_EXPERTS, 1, DTYPE_INT64, FALSE);
    graph_add_output(graph, token_dispatch_add(graph, "token_dispatch", x, order, counts, &attr).rows);
    return TRUE;
}

/* Choices here and elsewhere in turn. */
static void token_dispatch_fill(int idx, const OpView *view, Tensor *const *in, Tensor *const *param)
{
    const TokenDispatchAttr *attr = view->op->attr;
    int64_t *table = in[IN_ORDER]->data, local = attr->experts / attr->ep_size;
    (void)param;
    for (int64_t i = 0; i < tensor_numel(in[IN_ORDER]); i++) {
        table[i] = (i * 7 + idx) % (local + 2) - 2 < 0 ? -1 : (i * 7 + idx) % (local + 2) - 2;
    }
}

extern const OpClass op_token_dispatch;
const OpClass op_token_dispatch = {
    .id = "token_dispatch",
    .title = "token dispatch",
    .collective = OP_COLLECTIVE_ALL_TO_ALL,
    .to_experts = TRUE,
    .keep = OP_KEEP_ALL_TO_ALL,
    .no_grad_inputs = 1u << IN_ORDER | 1u << IN_COUNTS,
    .no_grad_outputs = 1u << 1,
    .saved = token_dispatch_saved,
    .forward_cost = token_dispatch_forward_cost,
    .backward_cost = token_dispatch_backward_cost,
    .forward = REAL_KERNELS(token_dispatch_forward),
    .backward = REAL_KERNELS(token_dispatch_backward),
    .sample = token_dispatch_sample,
    .sample_fill = token_dispatch_fill,
};
#endif
