#include "models/ops/router-counts.h"

#include <string.h>

#include "models/op-name.h"
#include "models/ops/router.h"
#include "models/real.h"
#include "sim/base/error.h"

REAL_DECLARE(router_counts_forward);
REAL_DECLARE(router_counts_backward);

gboolean REAL_NAME(router_counts_forward)(const OpRun *run, GError **error)
{
    const RouterCountsAttr *attr = run->view->op->attr;
    const int64_t *sel = run->in[0]->data;
    int64_t *counts = run->out[0]->data;
    int64_t n = op_rows(run->view, ROWS_TOKENS), n_passes = MAX(attr->n_passes, 1);
    memset(counts, 0, (size_t)(n_passes * attr->experts) * sizeof *counts);
    for (int64_t i = 0; i < n * attr->top_k; i++) {
        int64_t pass = attr->pass_tokens > 0 ? i / attr->top_k / attr->pass_tokens % n_passes : 0;
        if (sel[i] < 0 || sel[i] >= attr->experts) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                        "%s: choice %" G_GINT64_FORMAT " is expert %" G_GINT64_FORMAT "; there are %" G_GINT64_FORMAT,
                        run->view->op->name, i, sel[i], attr->experts);
            return FALSE;
        }
        counts[pass * attr->experts + sel[i]]++;
    }
    for (int64_t i = attr->experts; i < n_passes * attr->experts; i++) {
        counts[i] += counts[i - attr->experts];
    }
    op_count(run, 0, n * attr->top_k, n_passes * attr->experts);
    return TRUE;
}

gboolean REAL_NAME(router_counts_backward)(const OpRun *run, GError **error)
{
    (void)run;
    (void)error;
    return TRUE;
}

#if REAL_HAS_CLASS
int router_counts_add(Graph *graph, const char *name, int sel, const RouterCountsAttr *attr)
{
    int counts = graph_add_tensor(graph, op_name(name, "counts").text, ROWS_ONE, MAX(attr->n_passes, 1) * attr->experts, DTYPE_INT64);
    Op *op = op_add(graph, OP_router_counts, name, attr, sizeof *attr);
    op_input(op, sel);
    op_output(graph, op, counts);
    return counts;
}

static void router_counts_saved(const OpView *view, OpSaved *ret_saved)
{
    (void)view;
    *ret_saved = (OpSaved){0};
}

static void router_counts_forward_cost(const OpView *view, OpCost *ret_cost)
{
    op_cost_stream(ret_cost, WORK_SCATTER_ADD, 0, op_in_bytes(view, 0), op_out_bytes(view, 0));
}

static void router_counts_backward_cost(const OpView *view, OpCost *ret_cost)
{
    (void)view;
    *ret_cost = (OpCost){0};
}

static gboolean router_counts_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const RouterCountsAttr attrs[] = {
        {.experts = 5, .top_k = 2},
        {.experts = 3, .top_k = 3, .pass_tokens = 4, .n_passes = 1},
        {.experts = 4, .top_k = 1, .pass_tokens = 2, .n_passes = 3},
    };
    if (idx >= (int)G_N_ELEMENTS(attrs)) {
        return FALSE;
    }
    RouterAttr router = {.experts = attrs[idx].experts, .top_k = attrs[idx].top_k, .score = ROUTER_SOFTMAX, .scaling = 1};
    rows->rows[ROWS_ONE] = 1;
    rows->rows[ROWS_TOKENS] = rows->seq_len = 8;
    rows->rows[ROWS_SEQUENCES] = 1;
    rows->rows[ROWS_EXPERTS] = router.experts;
    rows->rows[ROWS_SLOTS] = 8 * router.top_k;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, 3, graph->compute, TRUE);
    RouterTensors t = router_add(graph, "gate", x, &router);
    graph_add_output(graph, router_counts_add(graph, "counts", t.sel, &attrs[idx]));
    return TRUE;
}

extern const OpClass op_router_counts;
const OpClass op_router_counts = {
    .id = "router_counts",
    .title = "router counts",
    .collective = OP_COLLECTIVE_ALL_REDUCE,
    .no_grad_inputs = 1u,
    .no_grad_outputs = 1u,
    .saved = router_counts_saved,
    .forward_cost = router_counts_forward_cost,
    .backward_cost = router_counts_backward_cost,
    .forward = REAL_KERNELS(router_counts_forward),
    .backward = REAL_KERNELS(router_counts_backward),
    .sample = router_counts_sample,
};
#endif
