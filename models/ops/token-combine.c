#include "models/ops/token-combine.h"

#include <string.h>

#include "models/op-name.h"
#include "models/real.h"

REAL_DECLARE(token_combine_forward);
REAL_DECLARE(token_combine_backward);

gboolean REAL_NAME(token_combine_forward)(const OpRun *run, GError **error)
{
    (void)error;
    memcpy(run->out[0]->data, run->in[0]->data,
           (size_t)(op_rows(run->view, ROWS_ARRIVED) * op_in(run->view, 0)->width) * sizeof(real));
    return TRUE;
}

gboolean REAL_NAME(token_combine_backward)(const OpRun *run, GError **error)
{
    size_t bytes = (size_t)(op_rows(run->view, ROWS_ARRIVED) * op_in(run->view, 0)->width) * sizeof(real);
    (void)error;
    if (run->din[0] != NULL && run->dout[0] != NULL) {
        memcpy(run->din[0]->data, run->dout[0]->data, bytes);
    } else if (run->din[0] != NULL) {
        memset(run->din[0]->data, 0, bytes);
    }
    return TRUE;
}

#if REAL_HAS_CLASS
int token_combine_add(Graph *graph, const char *name, int y, gboolean from_all)
{
    TokenCombineAttr attr = {.ep_size = graph->ep_size, .from_all = from_all};
    int64_t width = graph_tensor(graph, y)->width;
    g_assert(graph->ep_size > 1);
    int out = graph_add_tensor(graph, op_name(name, "out").text, ROWS_TOKENS, width, graph_tensor(graph, y)->dtype);
    graph_tensor(graph, out)->tag = MEM_DISPATCH;
    Op *op = op_add(graph, OP_token_combine, name, &attr, sizeof attr);
    op_input(op, y);
    op_output(graph, op, out);
    return out;
}

static void token_combine_saved(const OpView *view, OpSaved *ret_saved)
{
    (void)view;
    *ret_saved = (OpSaved){0};
}

static int64_t token_combine_bytes(const OpView *view)
{
    return op_rows(view, ROWS_ARRIVED) * dtype_bytes(op_in(view, 0)->dtype, op_in(view, 0)->width);
}

static void token_combine_forward_cost(const OpView *view, OpCost *ret_cost)
{
    *ret_cost = (OpCost){.workspace_bytes = token_combine_bytes(view)}; /* the sums about to be sent */
}

static void token_combine_backward_cost(const OpView *view, OpCost *ret_cost)
{
    *ret_cost = (OpCost){0};
    if (op_needs_input_grad(view, 0)) {
        ret_cost->workspace_bytes = token_combine_bytes(view); /* the gradients as they arrived */
    }
}

/* One rank stands for all: what it sends is what it receives. */
static gboolean token_combine_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        int64_t rows, width, ep_size;
    } samples[] = {{5, 3, 2}, {1, 4, 4}, {7, 2, 8}};
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    graph->ep_size = samples[idx].ep_size;
    rows->rows[ROWS_TOKENS] = rows->rows[ROWS_ARRIVED] = samples[idx].rows;
    int y = graph_add_input(graph, "y", ROWS_ARRIVED, samples[idx].width, graph->compute, TRUE);
    graph_add_output(graph, token_combine_add(graph, "token_combine", y, FALSE));
    return TRUE;
}

extern const OpClass op_token_combine;
const OpClass op_token_combine = {
    .id = "token_combine",
    .title = "token combine",
    .collective = OP_COLLECTIVE_ALL_TO_ALL,
    .keep = OP_KEEP_ALL_TO_ALL,
    .saved = token_combine_saved,
    .forward_cost = token_combine_forward_cost,
    .backward_cost = token_combine_backward_cost,
    .forward = REAL_KERNELS(token_combine_forward),
    .backward = REAL_KERNELS(token_combine_backward),
    .sample = token_combine_sample,
};
#endif
