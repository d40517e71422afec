/*
 * AttnRes mix: published numbers, edge cases, and the bytes that a fused kernel keeps and holds.
 */
#include "tests/check.h"

#include "models/execute.h"
#include "models/ops/attnres.h"

enum { ROWS = 2, N = 3, H = 6 };

static double fill_at(int64_t i, double phase, double amp)
{
    return amp * sin(0.37 * (double)i + phase);
}

static Tensor *fill(int64_t rows, int64_t width, double phase, double amp, int64_t first, int64_t stride)
{
    Tensor *tensor = tensor_new_2d(TENSOR_F64, rows, width);
    for (int64_t t = 0; t < rows; t++) {
        for (int64_t d = 0; d < width; d++) {
            tensor_set(tensor, t * width + d, fill_at(first + t * stride + d, phase, amp));
        }
    }
    return tensor;
}

static Graph *mix_graph(int n, int64_t width, Dtype dtype, int *sources)
{
    Graph *graph = graph_new(dtype);
    for (int i = 0; i < n; i++) {
        sources[i] = graph_add_input(graph, "source", ROWS_TOKENS, width, dtype, TRUE);
    }
    graph_add_output(graph, attnres_add(graph, "proj", "norm", sources, n, 1e-5));
    graph_finish(graph);
    return graph;
}

static void check_sums(const Tensor *x, double sum, double wsum, double last)
{
    double got_sum = 0, got_wsum = 0;
    int64_t n = tensor_numel(x);
    for (int64_t i = 0; i < n; i++) {
        got_sum += tensor_get(x, i);
        got_wsum += tensor_get(x, i) * cos(0.11 * (double)i);
    }
    check_close(got_sum, sum, 1e-9);
    check_close(got_wsum, wsum, 1e-9);
    check_close(tensor_get(x, n - 1), last, 1e-9);
}

/* kernels.md 17: V [2 tokens, 3 sources, 6]. */
static void test_published(void **state)
{
    int sources[N];
    GError *error = NULL;
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = ROWS, [ROWS_SEQUENCES] = 1}, .seq_len = ROWS};
    (void)state;
    g_autoptr(Graph) graph = mix_graph(N, H, DTYPE_FP64, sources);
    g_autoptr(Execution) run = execute_new(graph, &rows, TENSOR_F64);
    g_autoptr(GPtrArray) owned = g_ptr_array_new_with_free_func((GDestroyNotify)tensor_free);
    for (int i = 0; i < N; i++) {
        Tensor *source = fill(ROWS, H, 0.3, 1, i * H, N * H);
        g_ptr_array_add(owned, source);
        execute_put(run, sources[i], source);
    }
    g_autoptr(Tensor) w = fill(1, H, 1.0, 0.8, 0, 0), gamma = fill(1, H, 2.0, 0.1, 0, 0),
                      dy = fill(ROWS, H, 0.6, 1, 0, H);
    for (int64_t d = 0; d < H; d++) {
        tensor_set(gamma, d, 1 + tensor_get(gamma, d));
    }
    execute_put_param(run, 0, w);
    execute_put_param(run, 1, gamma);
    assert_true(execute_forward(run, &error));
    int y = g_array_index(graph->outputs, int, 0);
    execute_put_grad(run, y, dy);
    assert_true(execute_backward(run, &error));
    check_sums(execute_value(run, y), 9.30721900741, 7.03111886546, 0.57326161244);
    check_sums(execute_param_grad(run, 0), 0.614993750155, 0.556395314142, 0.19762451492);
    check_sums(execute_param_grad(run, 1), 0.313218056481, 0.288919224914, 0.0486130493833);
    g_autoptr(Tensor) dsources = tensor_new_2d(TENSOR_F64, ROWS, N * H);
    for (int i = 0; i < N; i++) {
        for (int64_t j = 0; j < ROWS * H; j++) {
            tensor_set(dsources, j / H * N * H + i * H + j % H, tensor_get(execute_grad(run, sources[i]), j));
        }
    }
    check_sums(dsources, 1.67005642013, 6.36897923075, 0.000877029687081);
}

/* One source comes out as it went in, and the query learns nothing. */
static void test_one_source(void **state)
{
    int sources[1];
    GError *error = NULL;
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = ROWS, [ROWS_SEQUENCES] = 1}, .seq_len = ROWS};
    (void)state;
    g_autoptr(Graph) graph = mix_graph(1, H, DTYPE_FP64, sources);
    g_autoptr(Execution) run = execute_new(graph, &rows, TENSOR_F64);
    g_autoptr(Tensor) x = fill(ROWS, H, 0.3, 1e6, 0, H), w = fill(1, H, 1, 1, 0, 0), dy = fill(ROWS, H, 0.6, 1, 0, H);
    execute_put(run, sources[0], x);
    execute_put_param(run, 0, w);
    execute_put_param(run, 1, w);
    assert_true(execute_forward(run, &error));
    execute_put_grad(run, g_array_index(graph->outputs, int, 0), dy);
    assert_true(execute_backward(run, &error));
    for (int64_t i = 0; i < ROWS * H; i++) {
        check_close(tensor_get(execute_value(run, g_array_index(graph->outputs, int, 0)), i), tensor_get(x, i), 1e-15);
        check_close(tensor_get(execute_grad(run, sources[0]), i), tensor_get(dy, i), 1e-12);
    }
    for (int64_t d = 0; d < H; d++) {
        check_close(tensor_get(execute_param_grad(run, 0), d) + 1, 1, 1e-9);
    }
}

/* Measured on an H200: 9 sources of 8192 x 7168 in bf16; kept with the result, peak in backward. */
static void test_measured_bytes(void **state)
{
    int sources[9];
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = 8192, [ROWS_SEQUENCES] = 1}, .seq_len = 8192};
    OpSaved saved;
    OpCost cost;
    (void)state;
    g_autoptr(Graph) graph = mix_graph(9, 7168, DTYPE_BF16, sources);
    OpView view = {graph, graph_op(graph, 0), &rows};
    op_class(OP_attnres)->saved(&view, &saved);
    int64_t kept = op_out_bytes(&view, 0);
    for (int i = 0; i < saved.n_aux; i++) {
        kept += op_aux_bytes(&saved.aux[i], &rows);
    }
    check_close((double)kept, 118063104, 0.001);
    op_class(OP_attnres)->backward_cost(&view, &cost);
    check_close((double)(kept + 9 * op_in_bytes(&view, 0) + cost.workspace_bytes), 1409937408, 0.001);
    op_class(OP_attnres)->forward_cost(&view, &cost);
    check_int(cost.n_works, 1);
    check_close(op_cost_flops(&cost), 6.0 * 9 * 8192 * 7168, 0.001);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_one_source),
        cmocka_unit_test(test_measured_bytes),
    };
    return cmocka_run_group_tests_name("attnres", tests, NULL, NULL);
}
