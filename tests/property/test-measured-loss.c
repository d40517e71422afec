/*
 * The loss against measured times of forward and backward on one H200 (PyTorch 2.11): full, in chunks of tokens that
 * are recomputed in backward, and as cut cross entropy. Kernels are priced one by one; rows in which the host was
 * slower than the device (many small chunks) are left out.
 */
#include "tests/check.h"

#include "hw/timing.h"
#include "models/op.h"
#include "models/ops/cross-entropy.h"
#include "models/ops/head-loss.h"
#include "models/ops/linear.h"

typedef enum LossKind { LOSS_FULL, LOSS_CHUNKS, LOSS_CUT } LossKind;

typedef struct Case {
    const char *name;
    LossKind kind;
    int64_t tokens, vocab, hidden, chunk;
    TimingRegime regime; /* loops of a second and more run at the clock that the power limit leaves */
    double seconds;
} Case;

static const Case cases[] = {
    {"full 4096 x 32000", LOSS_FULL, 4096, 32000, 4096, 4096, TIMING_BURST, 0.005796832},
    {"full 8192 x 131072", LOSS_FULL, 8192, 131072, 4096, 8192, TIMING_BURST, 0.050740162},
    {"one chunk of 4096 x 32000", LOSS_CHUNKS, 4096, 32000, 4096, 4096, TIMING_BURST, 0.008210432},
    {"chunks of 512 of 8192 x 131072", LOSS_CHUNKS, 8192, 131072, 4096, 512, TIMING_BURST, 0.087223457},
    {"chunks of 4096 of 8192 x 131072", LOSS_CHUNKS, 8192, 131072, 4096, 4096, TIMING_BURST, 0.072809570},
    {"one chunk of 4096 x 163840", LOSS_CHUNKS, 4096, 163840, 7168, 4096, TIMING_SUSTAINED, 0.070834},
    {"chunks of 1024 of 8192 x 163840", LOSS_CHUNKS, 8192, 163840, 7168, 1024, TIMING_SUSTAINED, 0.153504},
    {"cut 4096 x 32000", LOSS_CUT, 4096, 32000, 4096, 4096, TIMING_BURST, 0.020554497},
    {"cut 8192 x 131072", LOSS_CUT, 8192, 131072, 4096, 8192, TIMING_BURST, 0.159973694},
};

static Graph *loss_graph(const Case *c)
{
    const CrossEntropyAttr attr = {.ignore_index = CROSS_ENTROPY_IGNORE, .reduction = LOSS_SUM};
    Graph *graph = graph_new(DTYPE_BF16);
    int x = graph_add_input(graph, "x", ROWS_TOKENS, c->hidden, DTYPE_BF16, TRUE);
    int labels = graph_add_input(graph, "labels", ROWS_TOKENS, 1, DTYPE_INT64, FALSE);
    if (c->kind == LOSS_CUT) {
        head_loss_add(graph, "lm_head", x, labels, c->vocab, 128, &attr);
    } else {
        cross_entropy_add(graph, "loss", linear_add(graph, "lm_head", x, c->vocab, FALSE), labels, &attr);
    }
    graph_finish(graph);
    for (int o = 0; o < graph_n_ops(graph); o++) {
        graph_op(graph, o)->eager = c->kind != LOSS_CUT;
    }
    return graph;
}

static double op_seconds(const Device *device, const Case *c, const Graph *graph, gboolean backward)
{
    const RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = c->chunk}, .seq_len = c->chunk};
    double ns = 0;
    for (int o = 0; o < graph_n_ops(graph); o++) {
        OpView view = {graph, graph_op(graph, o), &rows};
        OpCost cost = {0};
        const OpClass *cls = op_class(view.op->kind);
        (backward ? cls->backward_cost : cls->forward_cost)(&view, &cost);
        for (int i = 0; i < cost.n_works; i++) {
            ns += (double)timing_work_ns(device, &cost.works[i], c->regime, NULL) * cost.works[i].n_launches;
        }
    }
    return ns / 1e9;
}

/* Around the chunks: gradients of the matrix add up; those of a chunk's rows are put into zeros, and these add up. */
static double sum_seconds(const Device *device, const Case *c, double n_chunks)
{
    int64_t matrix = 2 * c->vocab * c->hidden, rows = 2 * c->tokens * c->hidden, part = 2 * c->chunk * c->hidden;
    const struct {
        Work work;
        double times;
    } works[] = {
        {{.law = WORK_ELEMENTWISE, .read_bytes = 2 * matrix, .write_bytes = matrix, .n_launches = 1}, n_chunks - 1},
        {{.law = WORK_COPY, .write_bytes = rows, .n_launches = 1}, n_chunks},
        {{.law = WORK_COPY, .read_bytes = part, .write_bytes = part, .n_launches = 1}, n_chunks},
        {{.law = WORK_ELEMENTWISE, .read_bytes = 2 * rows, .write_bytes = rows, .n_launches = 1}, n_chunks - 1},
    };
    double ns = 0;
    for (size_t i = 0; i < G_N_ELEMENTS(works); i++) {
        ns += works[i].times * (double)timing_work_ns(device, &works[i].work, c->regime, NULL);
    }
    return ns / 1e9;
}

static void test_case(void **state)
{
    const Case *c = *state;
    GError *error = NULL;
    g_autoptr(Device) device = device_load("h200-sxm", &error);
    check_no_error(error);
    g_autoptr(Graph) graph = loss_graph(c);
    double forward = op_seconds(device, c, graph, FALSE), backward = op_seconds(device, c, graph, TRUE);
    double n_chunks = (double)c->tokens / (double)c->chunk, seconds = forward + backward;
    if (c->kind == LOSS_CHUNKS) {
        seconds = n_chunks * (2 * forward + backward) + sum_seconds(device, c, n_chunks);
    }
    print_message("# %s: %.4f s, measured %.4f s (%+.1f %%)\n", c->name, seconds, c->seconds,
                  100 * (seconds / c->seconds - 1));
    check_close(seconds, c->seconds, 0.10);
}

int main(void)
{
    return check_run_cases("measured loss", test_case, cases, G_N_ELEMENTS(cases), sizeof(Case));
}
