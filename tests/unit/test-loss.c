/*
 * The loss: any cut of tokens and vocabulary gives the same numbers, edge cases, and memory against measured peaks.
 */
#include "tests/check.h"

#include "models/execute.h"
#include "models/ops/cross-entropy.h"
#include "models/ops/head-loss.h"
#include "models/ops/linear.h"
#include "sim/base/error.h"
#include "sim/base/rng.h"

enum { N = 13, H = 6, V = 29 };

/* Loss and gradients of one way to compute them. */
typedef struct Numbers {
    double loss, dx[N * H], dw[V * H];
} Numbers;

static const CrossEntropyAttr all_options = {
    .ignore_index = CROSS_ENTROPY_IGNORE, .label_smoothing = 0.1, .z_loss = 0.02, .softcap = 4, .reduction = LOSS_SUM};

static Graph *loss_graph(int64_t vocab_chunk, const CrossEntropyAttr *attr)
{
    Graph *graph = graph_new(DTYPE_FP64);
    int x = graph_add_input(graph, "x", ROWS_TOKENS, H, DTYPE_FP64, TRUE);
    int labels = graph_add_input(graph, "labels", ROWS_TOKENS, 1, DTYPE_INT64, FALSE);
    if (vocab_chunk > 0) {
        graph_add_output(graph, head_loss_add(graph, "lm_head", x, labels, V, vocab_chunk, attr));
    } else {
        graph_add_output(graph,
                         cross_entropy_add(graph, "loss", linear_add(graph, "lm_head", x, V, FALSE), labels, attr));
    }
    graph_finish(graph);
    return graph;
}

/* Adds one chunk of tokens to the numbers. */
static void run_chunk(const Graph *graph, int64_t first, int64_t n, const Tensor *weight, Numbers *sum)
{
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = n}, .seq_len = n};
    g_autoptr(Tensor) x = tensor_new_2d(TENSOR_F64, n, H), labels = tensor_new_2d(TENSOR_I64, n, 1),
                      seed = tensor_new_2d(TENSOR_F64, 1, 1);
    g_autoptr(Execution) run = execute_new(graph, &rows, TENSOR_F64);
    int out = g_array_index(graph->outputs, int, 0);
    for (int64_t t = 0; t < n; t++) {
        tensor_set(labels, t, (first + t) % 4 == 3 ? CROSS_ENTROPY_IGNORE : (double)((first + t) * 9 % V));
        for (int64_t j = 0; j < H; j++) {
            tensor_set(x, t * H + j, rng_normal(1, RNG_VALUES, (uint64_t)((first + t) * H + j)));
        }
    }
    tensor_set(seed, 0, 0.7);
    execute_put(run, g_array_index(graph->inputs, int, 0), x);
    execute_put(run, g_array_index(graph->inputs, int, 1), labels);
    execute_put_param(run, 0, weight);
    assert_true(execute_forward(run, NULL));
    sum->loss += tensor_get(execute_value(run, out), 0);
    execute_put_grad(run, out, seed);
    assert_true(execute_backward(run, NULL));
    for (int64_t i = 0; i < n * H; i++) {
        sum->dx[first * H + i] = tensor_get(execute_grad(run, g_array_index(graph->inputs, int, 0)), i);
    }
    for (int64_t i = 0; i < V * H; i++) {
        sum->dw[i] += tensor_get(execute_param_grad(run, 0), i);
    }
}

static Numbers run_cut(int64_t token_chunk, int64_t vocab_chunk)
{
    g_autoptr(Graph) graph = loss_graph(vocab_chunk, &all_options);
    g_autoptr(Tensor) weight = tensor_new_2d(TENSOR_F64, V, H);
    Numbers sum = {0};
    for (int64_t i = 0; i < V * H; i++) {
        tensor_set(weight, i, rng_normal(2, RNG_VALUES, (uint64_t)i));
    }
    for (int64_t first = 0; first < N; first += token_chunk) {
        run_chunk(graph, first, MIN(token_chunk, N - first), weight, &sum);
    }
    return sum;
}

static void test_cuts(void **state)
{
    (void)state;
    static const int64_t token_chunks[] = {1, 2, 5, 12, N}, vocab_chunks[] = {0, 1, 3, 7, 28, V};
    Numbers whole = run_cut(N, 0);
    for (size_t i = 0; i < G_N_ELEMENTS(token_chunks); i++) {
        for (size_t j = 0; j < G_N_ELEMENTS(vocab_chunks); j++) {
            Numbers cut = run_cut(token_chunks[i], vocab_chunks[j]);
            check_close(cut.loss, whole.loss, 1e-12);
            for (int k = 0; k < N * H; k++) {
                assert_true(fabs(cut.dx[k] - whole.dx[k]) <= 1e-12);
            }
            for (int k = 0; k < V * H; k++) {
                assert_true(fabs(cut.dw[k] - whole.dw[k]) <= 1e-12);
            }
        }
    }
}

/* A label outside the vocabulary is an error with its place. */
static void test_bad_label(void **state)
{
    (void)state;
    for (int64_t chunk = 0; chunk <= 8; chunk += 8) {
        g_autoptr(Graph) graph = loss_graph(chunk, &all_options);
        RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = 2}, .seq_len = 2};
        g_autoptr(Tensor) x = tensor_new_2d(TENSOR_F64, 2, H), labels = tensor_new_2d(TENSOR_I64, 2, 1),
                          weight = tensor_new_2d(TENSOR_F64, V, H);
        g_autoptr(Execution) run = execute_new(graph, &rows, TENSOR_F64);
        GError *error = NULL;
        tensor_set(labels, 1, V);
        execute_put(run, g_array_index(graph->inputs, int, 0), x);
        execute_put(run, g_array_index(graph->inputs, int, 1), labels);
        execute_put_param(run, 0, weight);
        assert_false(execute_forward(run, &error));
        check_error(&error, MOESIM_ERROR_INPUT, "label of token 1 is 29");
    }
}

typedef struct Peak {
    const char *name;
    int64_t n, vocab, hidden;
    gboolean sliced;
    int64_t bytes; /* measured above what was there before: PyTorch 2.11 on an H200 */
} Peak;

static const Peak peaks[] = {
    {"full 4096 x 32000", 4096, 32000, 4096, FALSE, 1572865024},
    {"full 8192 x 131072", 8192, 131072, 4096, FALSE, 12884902912},
    {"full 4096 x 163840 (chunk of its own)", 4096, 163840, 7168, FALSE, 8053064192},
    {"cut cross entropy 4096 x 32000", 4096, 32000, 4096, TRUE, 296044032},
    {"cut cross entropy 8192 x 131072", 8192, 131072, 4096, TRUE, 1142211584},
};

/* Kept and gradients and workspace of the loss's backward: the peak of the full loss, and of the sliced one. */
static void test_peaks(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(peaks); i++) {
        const Peak *p = &peaks[i];
        const CrossEntropyAttr attr = {.ignore_index = CROSS_ENTROPY_IGNORE, .reduction = LOSS_MEAN};
        g_autoptr(Graph) graph = graph_new(DTYPE_BF16);
        RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = p->n}, .seq_len = p->n};
        int x = graph_add_input(graph, "x", ROWS_TOKENS, p->sliced ? p->hidden : p->vocab, DTYPE_BF16, TRUE);
        int labels = graph_add_input(graph, "labels", ROWS_TOKENS, 1, DTYPE_INT64, FALSE);
        int loss = p->sliced ? head_loss_add(graph, "lm_head", x, labels, p->vocab, 128, &attr)
                             : cross_entropy_add(graph, "loss", x, labels, &attr);
        graph_add_output(graph, loss);
        graph_finish(graph);
        Op *op = graph_op(graph, 0);
        OpView view = {graph, op, &rows};
        OpSaved saved = {0};
        OpCost cost = {0};
        op->eager = !p->sliced;
        op_class(op->kind)->saved(&view, &saved);
        op_class(op->kind)->backward_cost(&view, &cost);
        int64_t bytes = cost.workspace_bytes + op_in_bytes(&view, 0);
        bytes += p->sliced ? 2 * p->vocab * p->hidden : 0;
        for (int k = 0; k < saved.n_aux; k++) {
            bytes += op_aux_bytes(&saved.aux[k], &rows);
        }
        print_message("# %s: %" G_GINT64_FORMAT ", measured %" G_GINT64_FORMAT "\n", p->name, bytes, p->bytes);
        check_close((double)bytes, (double)p->bytes, 0.01);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cuts), cmocka_unit_test(test_bad_label),
                                       cmocka_unit_test(test_peaks)};
    return cmocka_run_group_tests_name("loss", tests, NULL, NULL);
}
