/*
 * Activations: published points, saturation, and the eager chains against kernels and bytes seen on an H200.
 */
#include "tests/check.h"

#include "models/execute.h"
#include "models/ops/activation.h"

static Graph *act_graph(const ActivationAttr *attr, int64_t width, Dtype dtype, gboolean eager, int *inputs)
{
    Graph *graph = graph_new(dtype);
    graph->eager_default = eager;
    gboolean gated = activation_is_gated(attr->form);
    inputs[0] = graph_add_input(graph, "g", ROWS_TOKENS, width, dtype, TRUE);
    inputs[1] = gated ? graph_add_input(graph, "u", ROWS_TOKENS, width, dtype, TRUE) : -1;
    graph_add_output(graph, activation_add(graph, "act", attr, inputs[0], inputs[1]));
    graph_finish(graph);
    return graph;
}

/* y at one point. */
static double value_at(const ActivationAttr *attr, double g, double u)
{
    int inputs[2];
    GError *error = NULL;
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = 1, [ROWS_SEQUENCES] = 1}, .seq_len = 1};
    g_autoptr(Graph) graph = act_graph(attr, 1, DTYPE_FP64, FALSE, inputs);
    g_autoptr(Execution) run = execute_new(graph, &rows, TENSOR_F64);
    g_autoptr(Tensor) tg = tensor_new_2d(TENSOR_F64, 1, 1), tu = tensor_new_2d(TENSOR_F64, 1, 1);
    tensor_set(tg, 0, g);
    tensor_set(tu, 0, u);
    execute_put(run, inputs[0], tg);
    if (inputs[1] >= 0) {
        execute_put(run, inputs[1], tu);
    }
    execute_forward(run, &error);
    check_no_error(error);
    return tensor_get(execute_value(run, g_array_index(graph->outputs, int, 0)), 0);
}

static void test_points(void **state)
{
    static const struct {
        ActivationAttr attr;
        double g, u, y;
    } points[] = {
        {{ACTIVATION_FORM_SITU, 4, 25}, 1, 1, 0.715817828},
        {{ACTIVATION_FORM_SITU, 4, 25}, -2, 3, -0.657873819},
        {{ACTIVATION_FORM_SITU, 4, 25}, 10, -40, -90.929009223},
        {{ACTIVATION_FORM_SITU, 4, 25}, 0, 5, 0},
        {{ACTIVATION_FORM_SITU, 4, 25}, 1e4, 1e4, 100},
        {{ACTIVATION_FORM_SITU, 4, 25}, -1e4, 1e4, 0},
        {{ACTIVATION_FORM_SWIGLU, 0, 0}, 1, 2, 1.462117157},
        {{ACTIVATION_FORM_GPTOSS, 0, 0}, 100, -100, -41.99971877},
        {{ACTIVATION_FORM_RELU2, 0, 0}, -3, 0, 0},
        {{ACTIVATION_FORM_RELU2, 0, 0}, 3, 0, 9},
        {{ACTIVATION_FORM_SILU, 0, 0}, -1000, 0, 0},
        {{ACTIVATION_FORM_GELU, 0, 0}, 1, 0, 0.841344746},
        {{ACTIVATION_FORM_GELU_TANH, 0, 0}, 1, 0, 0.841191991},
    };
    (void)state;
    for (guint i = 0; i < G_N_ELEMENTS(points); i++) {
        check_close(value_at(&points[i].attr, points[i].g, points[i].u) + 1, points[i].y + 1, 1e-8);
    }
}

/* Profiled in bf16: launches forward and backward, tensors of the input's size that stay (inputs by reference
 * included). */
static void test_chains(void **state)
{
    static const struct {
        ActivationAttr attr;
        int forward, backward, kept;
    } chains[] = {
        {{ACTIVATION_FORM_SWIGLU, 0, 0}, 2, 3, 3},    {{ACTIVATION_FORM_SITU, 4, 25}, 9, 12, 6},
        {{ACTIVATION_FORM_GPTOSS, 0, 0}, 7, 15, 6},   {{ACTIVATION_FORM_RELU2, 0, 0}, 2, 4, 1},
        {{ACTIVATION_FORM_SILU, 0, 0}, 1, 1, 1},      {{ACTIVATION_FORM_GELU, 0, 0}, 1, 1, 1},
        {{ACTIVATION_FORM_GELU_TANH, 0, 0}, 1, 1, 1},
    };
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = 64, [ROWS_SEQUENCES] = 1}, .seq_len = 64};
    (void)state;
    for (guint i = 0; i < G_N_ELEMENTS(chains); i++) {
        int inputs[2];
        OpSaved saved;
        OpCost cost;
        g_autoptr(Graph) graph = act_graph(&chains[i].attr, 32, DTYPE_BF16, TRUE, inputs);
        OpView view = {graph, graph_op(graph, 0), &rows};
        const OpClass *class = op_class(OP_activation);
        class->saved(&view, &saved);
        check_int(saved.n_aux + (int)(saved.inputs & 1) + (int)(saved.inputs >> 1 & 1), chains[i].kept);
        class->forward_cost(&view, &cost);
        check_int(op_cost_launches(&cost), chains[i].forward);
        class->backward_cost(&view, &cost);
        check_int(op_cost_launches(&cost), chains[i].backward);
    }
}

/* 14 local experts in eager SiTU, 65,536 rows: six tensors of [rows, 3072], the product and the result stay. */
static void test_measured_bytes(void **state)
{
    int inputs[2];
    OpSaved saved;
    ActivationAttr attr = {ACTIVATION_FORM_SITU, 4, 25};
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = 65536, [ROWS_SEQUENCES] = 1}, .seq_len = 65536};
    (void)state;
    g_autoptr(Graph) graph = act_graph(&attr, 3072, DTYPE_BF16, TRUE, inputs);
    OpView view = {graph, graph_op(graph, 0), &rows};
    op_class(OP_activation)->saved(&view, &saved);
    int64_t kept = op_out_bytes(&view, 0) + 2 * 65536 * 3584;
    for (int i = 0; i < saved.n_aux; i++) {
        kept += op_aux_bytes(&saved.aux[i], &rows);
    }
    check_int(saved.inputs, 0);
    check_close((double)kept, 3288334336, 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_points),
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_measured_bytes),
    };
    return cmocka_run_group_tests_name("activation", tests, NULL, NULL);
}
