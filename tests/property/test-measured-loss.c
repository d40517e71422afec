/*
 * The loss against measured times: full and as cut cross entropy, on one
 * H200 (PyTorch 2.11, short bursts). Kernels are priced one by one; the device is never idle in these loops.
 */
#include "tests/check.h"

#include "hw/timing.h"
#include "models/op.h"
#include "models/ops/cross-entropy.h"
#include "models/ops/head-loss.h"
#include "models/ops/linear.h"

typedef struct Case {
    const char *name;
    int64_t tokens, vocab, hidden, token_chunk; /* token_chunk 0 = cut cross entropy */
    double seconds, bound;                      /* relative */
} Case;

static const Case cases[] = {
    {"full 4096 x 32000", 4096, 32000, 4096, 4096, 0.005796832, 0.10},
    {"full 8192 x 131072", 8192, 131072, 4096, 8192, 0.050740162, 0.10},
    {"cut cross entropy 4096 x 32000", 4096, 32000, 4096, 0, 0.020554497, 0.10},
    {"cut cross entropy 8192 x 131072", 8192, 131072, 4096, 0, 0.159973694, 0.10},
};

static double op_seconds(const Device *device, const Graph *graph, const RowCounts *rows, gboolean backward)
{
    double ns = 0;
    for (int o = 0; o < graph_n_ops(graph); o++) {
        OpView view = {graph, graph_op(graph, o), rows};
        OpCost cost = {0};
        const OpClass *class = op_class(view.op->kind);
        (backward ? class->backward_cost : class->forward_cost)(&view, &cost);
        for (int i = 0; i < cost.n_works; i++) {
            double one = (double)timing_work_ns(device, &cost.works[i], TIMING_BURST, NULL);
            ns += one * cost.works[i].n_launches;
        }
    }
    return ns / 1e9;
}

static void test_case(void **state)
{
    const Case *c = *state;
    const CrossEntropyAttr attr = {.ignore_index = CROSS_ENTROPY_IGNORE, .reduction = LOSS_SUM};
    GError *error = NULL;
    g_autoptr(Device) device = device_load("h200-sxm", &error);
    check_no_error(error);
    g_autoptr(Graph) graph = graph_new(DTYPE_BF16);
    int64_t rows_per_chunk = c->token_chunk > 0 ? c->token_chunk : c->tokens;
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = rows_per_chunk}, .seq_len = rows_per_chunk};
    int x = graph_add_input(graph, "x", ROWS_TOKENS, c->hidden, DTYPE_BF16, TRUE);
    int labels = graph_add_input(graph, "labels", ROWS_TOKENS, 1, DTYPE_INT64, FALSE);
    if (c->token_chunk > 0) {
        cross_entropy_add(graph, "loss", linear_add(graph, "lm_head", x, c->vocab, FALSE), labels, &attr);
    } else {
        head_loss_add(graph, "lm_head", x, labels, c->vocab, 128, &attr);
    }
    graph_finish(graph);
    for (int o = 0; o < graph_n_ops(graph); o++) {
        graph_op(graph, o)->eager = c->token_chunk > 0;
    }
    double forward = op_seconds(device, graph, &rows, FALSE), backward = op_seconds(device, graph, &rows, TRUE);
    double chunks = (double)(c->tokens / rows_per_chunk);
    double seconds = chunks * (forward * (c->token_chunk > 0 && c->token_chunk < c->tokens ? 2 : 1) + backward);
    print_message("# %s: %.4f s, measured %.4f s (%+.1f %%)\n", c->name, seconds, c->seconds,
                  100 * (seconds / c->seconds - 1));
    check_close(seconds, c->seconds, c->bound);
}

int main(void)
{
    return check_run_cases("measured loss", test_case, cases, G_N_ELEMENTS(cases), sizeof(Case));
}
