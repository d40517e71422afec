/*
 * Short convolution, gated head norm and Mamba-2: eager chains against a profile of PyTorch on an H200, what they keep,
 * windows at document starts, parameter counts.
 */
#include "tests/check.h"

#include "models/execute.h"
#include "models/ops/gated-norm.h"
#include "models/ops/mamba2.h"
#include "models/ops/short-conv.h"

static RowCounts tokens(int64_t n_sequences, int64_t seq_len)
{
    return (RowCounts){
        .rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = n_sequences * seq_len, [ROWS_SEQUENCES] = n_sequences},
        .seq_len = seq_len,
    };
}

static int64_t aux_bytes(const OpView *view)
{
    OpSaved saved;
    int64_t bytes = 0;
    op_class(view->op->kind)->saved(view, &saved);
    for (int i = 0; i < saved.n_aux; i++) {
        bytes += op_aux_bytes(&saved.aux[i], view->rows);
    }
    return bytes;
}

/* Laws of a cost's kernels in launch order. */
static void check_laws(const OpCost *cost, const WorkLaw *want, int n)
{
    check_int(cost->n_works, n);
    for (int i = 0; i < n; i++) {
        check_string(work_law_name(cost->works[i].law), work_law_name(want[i]));
    }
}

static void test_conv_chain(void **state)
{
    (void)state;
    static const WorkLaw forward[] = {WORK_COPY, WORK_TRANSPOSE, WORK_CONV1D, WORK_ELEMENTWISE, WORK_TRANSPOSE};
    static const WorkLaw backward[] = {WORK_TRANSPOSE, WORK_TRANSPOSE, WORK_CONV1D, WORK_CONV1D, WORK_STRIDED};
    g_autoptr(Graph) graph = graph_new(DTYPE_BF16);
    RowCounts rows = tokens(1, 4096);
    OpCost cost;
    graph->eager_default = TRUE;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, 12288, DTYPE_BF16, TRUE);
    graph_add_output(graph, short_conv_add(graph, "conv", x, 12288, 4, TRUE));
    graph_finish(graph);
    OpView view = {graph, graph_op(graph, 0), &rows};
    op_class(OP_short_conv)->forward_cost(&view, &cost);
    check_laws(&cost, forward, G_N_ELEMENTS(forward));
    op_class(OP_short_conv)->backward_cost(&view, &cost);
    check_laws(&cost, backward, G_N_ELEMENTS(backward));
    /* the padded copy and the input of SiLU */
    check_int(aux_bytes(&view), 2 * (4096 + 3) * 12288 + 2 * 4096 * 12288);
}

/* Two documents: the second one's first row sees only itself. */
static void test_conv_documents(void **state)
{
    (void)state;
    g_autoptr(Graph) graph = graph_new(DTYPE_FP64);
    int64_t starts[] = {0, 2, 5};
    RowCounts rows = tokens(2, 0);
    GError *error = NULL;
    rows.rows[ROWS_TOKENS] = 5;
    rows.doc_starts = starts;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, 1, DTYPE_FP64, TRUE);
    int y = short_conv_add(graph, "conv", x, 1, 4, FALSE);
    graph_add_output(graph, y);
    graph_finish(graph);
    g_autoptr(Tensor) values = tensor_new_2d(TENSOR_F64, 5, 1);
    g_autoptr(Tensor) taps = tensor_new_2d(TENSOR_F64, 1, 4);
    for (int i = 0; i < 5; i++) {
        tensor_set(values, i, i + 1);
        if (i < 4) {
            tensor_set(taps, i, pow(10, i));
        }
    }
    g_autoptr(Execution) run = execute_new(graph, &rows, TENSOR_F64);
    execute_put(run, x, values);
    execute_put_param(run, 0, taps);
    execute_forward(run, &error);
    check_no_error(error);
    static const double want[] = {1000, 2100, 3000, 4300, 5430};
    for (int i = 0; i < 5; i++) {
        check_close(tensor_get(execute_value(run, y), i), want[i], 1e-15);
    }
}

static void test_gated_norm_chain(void **state)
{
    (void)state;
    static const WorkLaw forward[] = {WORK_NORM_FORWARD, WORK_ELEMENTWISE, WORK_ELEMENTWISE};
    static const WorkLaw backward[] = {WORK_ELEMENTWISE,   WORK_ELEMENTWISE,      WORK_ELEMENTWISE,
                                       WORK_NORM_BACKWARD, WORK_NORM_WEIGHT_GRAD, WORK_REDUCE};
    g_autoptr(Graph) graph = graph_new(DTYPE_BF16);
    RowCounts rows = tokens(1, 64);
    OpCost cost;
    graph->eager_default = TRUE;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, 512, DTYPE_BF16, TRUE);
    int gate = graph_add_input(graph, "gate", ROWS_TOKENS, 512, DTYPE_BF16, TRUE);
    graph_add_output(graph, gated_norm_add(graph, "norm", x, gate, 128, GATED_NORM_SIGMOID, 1e-5));
    graph_finish(graph);
    OpView view = {graph, graph_op(graph, 0), &rows};
    op_class(OP_gated_norm)->forward_cost(&view, &cost);
    check_laws(&cost, forward, G_N_ELEMENTS(forward));
    check_int(cost.works[0].m, 64 * 4); /* rows of a head */
    check_int(cost.works[0].n, 128);
    op_class(OP_gated_norm)->backward_cost(&view, &cost);
    check_laws(&cost, backward, G_N_ELEMENTS(backward));
    check_int(aux_bytes(&view), 4 * 64 * 4 + 2 * 2 * 64 * 512); /* fp32 statistics, normed x, sigmoid */
}

/* Nemotron 3 Nano: c K + c + 3 heads + d_in besides the projections. */
static void test_mamba2_counts(void **state)
{
    (void)state;
    Mamba2Attr attr = {.heads = 64, .head_dim = 64, .groups = 8, .state = 128, .kernel = 4, .chunk = 128};
    int64_t width = 64 * 64, channels = width + 2 * 8 * 128, n = 0;
    g_autoptr(Graph) graph = graph_new(DTYPE_BF16);
    RowCounts rows = tokens(2, 300);
    OpCost cost;
    check_int(mamba2_in_width(&attr), 2 * width + 2 * 8 * 128 + 64);
    int x = graph_add_input(graph, "zxbcdt", ROWS_TOKENS, mamba2_in_width(&attr), DTYPE_BF16, TRUE);
    graph_add_output(graph, mamba2_add(graph, "mixer", x, &attr));
    graph_finish(graph);
    for (guint i = 0; i < graph->params->len; i++) {
        n += graph_param_numel(graph_param(graph, (int)i));
    }
    check_int(n, channels * 4 + channels + 3 * 64 + width);
    OpView view = {graph, graph_op(graph, 0), &rows};
    op_class(OP_mamba2)->forward_cost(&view, &cost);
    check_int(cost.works[1].law, WORK_SCAN_FORWARD);
    /* chunks of 128, 128 and 44 tokens, twice: pairs for C B^T and its product with x, then states and read-out */
    double pairs = 2.0 * (2 * 128 * 129 / 2 + 44 * 45 / 2);
    double flops =
        2 * pairs * (8 * 128 + 64 * 64) + 4.0 * 600 * 64 * 64 * 128 + 2.0 * 6 * 64 * 64 * 128 + 3.0 * 600 * 4096;
    check_close(cost.works[1].flops, flops, 1e-12);
    op_class(OP_mamba2)->backward_cost(&view, &cost);
    check_close(cost.works[1].flops, 2 * flops, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv_chain),
        cmocka_unit_test(test_conv_documents),
        cmocka_unit_test(test_gated_norm_chain),
        cmocka_unit_test(test_mamba2_counts),
    };
    return cmocka_run_group_tests_name("short-conv", tests, NULL, NULL);
}
