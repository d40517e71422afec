/* FP8 products: kernels, bytes and kept tensors of the block-scaled recipe, counted by hand. */
#include "models/fp8.h"

#include "models/ops/grouped-gemm.h"
#include "models/ops/linear.h"
#include "tests/check.h"

enum { M = 300, N = 256, K = 384, EXPERTS = 3 };

/* Codes with a scale per 128 of a row. */
static int64_t by_rows(int64_t rows, int64_t width)
{
    return rows * width + 4 * rows * ((width + 127) / 128);
}

static int64_t weight_codes(int64_t n, int64_t k)
{
    return n * k + 4 * ((n + 127) / 128) * ((k + 127) / 128);
}

typedef struct Case {
    const char *name;
    gboolean grouped, frozen, needs_grad;
} Case;

static const Case cases[] = {
    {"linear", FALSE, FALSE, TRUE},
    {"linear, first of a model", FALSE, FALSE, FALSE},
    {"linear, frozen", FALSE, TRUE, TRUE},
    {"experts", TRUE, FALSE, TRUE},
    {"experts, frozen", TRUE, TRUE, TRUE},
};

static Graph *graph_of(const Case *c, Dtype compute, gboolean fp8)
{
    Graph *graph = graph_new(compute);
    graph->freeze_base = c->frozen;
    int x = graph_add_input(graph, "x", c->grouped ? ROWS_RECEIVED : ROWS_TOKENS, K, compute, c->needs_grad);
    graph_add_output(graph, c->grouped ? grouped_gemm_add(graph, "w", x, N, EXPERTS) : linear_add(graph, "w", x, N, FALSE));
    graph_op(graph, 0)->fp8 = fp8;
    graph_finish(graph);
    return graph;
}

static void check_work(const Work *work, WorkGroup group, Dtype dtype, int64_t read, int64_t written)
{
    check_int(work_law_group(work->law), group);
    check_int(group == WORK_GROUP_COMPUTE ? work->dtype : dtype, dtype);
    check_int(work->read_bytes, read);
    check_int(work->write_bytes, written);
}

static const RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = M, [ROWS_RECEIVED] = M, [ROWS_LOCAL_EXPERTS] = EXPERTS,
                                        [ROWS_EXPERTS] = EXPERTS},
                               .seq_len = M};

static void test_costs(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const Case *c = &cases[i];
        g_autoptr(Graph) graph = graph_of(c, DTYPE_BF16, TRUE);
        OpView view = {graph, graph_op(graph, 0), &rows};
        int64_t n_weights = c->grouped ? EXPERTS : 1, codes = n_weights * weight_codes(N, K), whole = 2 * n_weights * N * K;
        gboolean trains = !c->frozen;
        OpSaved saved = {0};
        OpCost forward = {0}, backward = {0};
        op_class(view.op->kind)->saved(&view, &saved);
        op_class(view.op->kind)->forward_cost(&view, &forward);
        op_class(view.op->kind)->backward_cost(&view, &backward);
        check_int(saved.inputs, 0);
        check_int(saved.n_aux, trains ? 2 : 0);
        int64_t kept = 0;
        for (int a = 0; a < saved.n_aux; a++) {
            kept += op_aux_bytes(&saved.aux[a], &rows);
        }
        check_int(kept, trains ? by_rows(M, K) : 0);
        check_int(forward.n_works, 3);
        check_work(&forward.works[0], WORK_GROUP_STREAM, DTYPE_FP8, 2 * M * K, (1 + trains) * by_rows(M, K));
        check_work(&forward.works[1], WORK_GROUP_STREAM, DTYPE_FP8, whole, codes);
        check_work(&forward.works[2], WORK_GROUP_COMPUTE, DTYPE_FP8, M * K + n_weights * N * K, 2 * M * N);
        check_int(forward.workspace_bytes, by_rows(M, K) + codes);
        check_int(forward.n_works_to_save, trains ? 1 : 0);
        check_int(backward.n_works, 1 + 2 * c->needs_grad + trains);
        check_work(&backward.works[0], WORK_GROUP_STREAM, DTYPE_FP8, 2 * M * N, (c->needs_grad + trains) * by_rows(M, N));
        check_int(backward.workspace_bytes, (c->needs_grad + trains) * by_rows(M, N) + c->needs_grad * codes);
        if (trains) {
            check_work(&backward.works[backward.n_works - 1], WORK_GROUP_COMPUTE, DTYPE_FP8, M * K + M * N, whole);
        }
        check_close(op_cost_flops(&forward), 2.0 * M * N * K, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_costs)};
    return cmocka_run_group_tests_name("fp8", tests, NULL, NULL);
}
