/*
 * Loss by vocabulary slices against the whole: time and working memory, float32, one thread, forward and backward.
 * Target: within 1.3 times the time of the full loss at a tenth of its memory.
 */
#include <glib.h>
#include <string.h>

#include "models/execute.h"
#include "models/ops/cross-entropy.h"
#include "models/ops/head-loss.h"
#include "models/ops/linear.h"
#include "tests/bench/bench.h"

enum { TOKENS = 512, HIDDEN = 512, VOCAB = 16384, N_REPEATS = 5 };

static Graph *loss_graph(int64_t vocab_chunk)
{
    const CrossEntropyAttr attr = {.ignore_index = CROSS_ENTROPY_IGNORE, .reduction = LOSS_MEAN};
    Graph *graph = graph_new(DTYPE_FP32);
    int x = graph_add_input(graph, "x", ROWS_TOKENS, HIDDEN, DTYPE_FP32, TRUE);
    int labels = graph_add_input(graph, "labels", ROWS_TOKENS, 1, DTYPE_INT64, FALSE);
    if (vocab_chunk > 0) {
        graph_add_output(graph, head_loss_add(graph, "lm_head", x, labels, VOCAB, vocab_chunk, &attr));
    } else {
        graph_add_output(
            graph, cross_entropy_add(graph, "loss", linear_add(graph, "lm_head", x, VOCAB, FALSE), labels, &attr));
    }
    graph_finish(graph);
    return graph;
}

static Tensor *numbers(int64_t rows, int64_t width)
{
    Tensor *tensor = tensor_new_2d(TENSOR_F32, rows, width);
    for (int64_t i = 0; i < rows * width; i++) {
        tensor_set(tensor, i, (double)(i * 7919 % 1013 - 506) / 4096);
    }
    return tensor;
}

/* One forward and backward; seconds. */
static double once(const Graph *graph, const Tensor *x, const Tensor *labels, const Tensor *weight)
{
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = TOKENS}, .seq_len = TOKENS};
    g_autoptr(Execution) run = execute_new(graph, &rows, TENSOR_F32);
    g_autoptr(Tensor) seed = tensor_new_2d(TENSOR_F32, 1, 1);
    tensor_set(seed, 0, 1);
    execute_put(run, g_array_index(graph->inputs, int, 0), x);
    execute_put(run, g_array_index(graph->inputs, int, 1), labels);
    execute_put_param(run, 0, weight);
    execute_put_grad(run, g_array_index(graph->outputs, int, 0), seed);
    double start = bench_cpu_s();
    gboolean ok = execute_forward(run, NULL) && execute_backward(run, NULL);
    g_assert(ok);
    return bench_cpu_s() - start;
}

int main(void)
{
    static const int64_t chunks[] = {0, VOCAB, VOCAB / 5, VOCAB / 20};
    g_autoptr(Tensor) x = numbers(TOKENS, HIDDEN), weight = numbers(VOCAB, HIDDEN),
                      labels = tensor_new_2d(TENSOR_I64, TOKENS, 1);
    double best[G_N_ELEMENTS(chunks)];
    for (int64_t t = 0; t < TOKENS; t++) {
        tensor_set(labels, t, (double)(t * 31 % VOCAB));
    }
    for (int r = 0; r < N_REPEATS; r++) { /* by turns, so that a neighbour's load falls on all of them */
        for (size_t i = 0; i < G_N_ELEMENTS(chunks); i++) {
            g_autoptr(Graph) graph = loss_graph(chunks[i]);
            double seconds = once(graph, x, labels, weight);
            best[i] = r == 0 ? seconds : MIN(best[i], seconds);
        }
    }
    for (size_t i = 0; i < G_N_ELEMENTS(chunks); i++) {
        /* full: logits and their gradient; sliced: one slice and four numbers per token */
        double memory = chunks[i] == 0 ? 2.0 * VOCAB : (double)chunks[i] + 4;
        printf("%-10s %8.3f s, %.2f of full (target 1.3), working memory %.3f of full\n",
               chunks[i] == 0 ? "full" : "slices", best[i], best[i] / best[0], memory / (2.0 * VOCAB));
    }
    return 0;
}
