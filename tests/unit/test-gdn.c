/*
 * Gated delta net and KDA through their operators: chunked against recurrent form, float32 against float64, and batches
 * without a single token.
 */
#include "tests/check.h"

#include "models/execute.h"
#include "models/ops/gdn.h"
#include "models/ops/kda.h"
#include "sim/base/rng.h"

enum { N_INPUTS = 5, DIM = 64 };

/* One operator with 1 key head and 2 value heads over `n` tokens. */
typedef struct Case {
    gboolean kda, recurrent;
    int64_t n, dim;
    TensorType real;
} Case;

typedef struct Run {
    Graph *graph;
    Execution *run;
    Tensor *inputs[N_INPUTS], *a_log, *dt, *d_o;
    int tensors[N_INPUTS], o;
} Run;

/* Draws around 0 that float32 holds exactly: the comparison is of the arithmetic. */
static Tensor *draws(TensorType type, int64_t rows, int64_t width, int stream, double size)
{
    Tensor *tensor = tensor_new_2d(type, rows, width);
    for (int64_t i = 0; i < rows * width; i++) {
        double u = rng_uniform((uint64_t)stream, RNG_TEST, (uint64_t)i);
        tensor_set(tensor, i, (double)(float)(size * (2 * u - 1)));
    }
    return tensor;
}

static int add_op(Run *run, const Case *c)
{
    if (c->kda) {
        KdaAttr attr = {.heads = 1,
                        .value_heads = 2,
                        .key_dim = c->dim,
                        .value_dim = c->dim,
                        .gate = KDA_GATE_BOUNDED,
                        .lower_bound = -5,
                        .recurrent = c->recurrent};
        return kda_add(run->graph, "attn", run->tensors, &attr);
    }
    GdnAttr attr = {.heads = 1, .value_heads = 2, .key_dim = c->dim, .value_dim = c->dim, .recurrent = c->recurrent};
    return gdn_add(run->graph, "attn", run->tensors, &attr);
}

static void run_init(Run *run, const Case *c)
{
    const int64_t widths[] = {c->dim, c->dim, 2 * c->dim, c->kda ? 2 * c->dim : 2, 2};
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = c->n, [ROWS_SEQUENCES] = 1}, .seq_len = c->n};
    GError *error = NULL;
    run->graph = graph_new(DTYPE_FP64);
    for (int i = 0; i < N_INPUTS; i++) {
        run->tensors[i] = graph_add_input(run->graph, "in", ROWS_TOKENS, widths[i], DTYPE_FP64, TRUE);
        run->inputs[i] = draws(c->real, c->n, widths[i], i, 1);
    }
    run->o = add_op(run, c);
    graph_add_output(run->graph, run->o);
    graph_finish(run->graph);
    run->a_log = draws(c->real, 1, 2, 5, 0.5);
    run->dt = draws(c->real, 1, c->kda ? 2 * c->dim : 2, 6, 0.5);
    run->d_o = draws(c->real, c->n, 2 * c->dim, 7, 1);
    run->run = execute_new(run->graph, &rows, c->real);
    for (int i = 0; i < N_INPUTS; i++) {
        execute_put(run->run, run->tensors[i], run->inputs[i]);
    }
    execute_put_param(run->run, 0, run->a_log);
    execute_put_param(run->run, 1, run->dt);
    execute_forward(run->run, &error);
    check_no_error(error);
    execute_put_grad(run->run, run->o, run->d_o);
    execute_backward(run->run, &error);
    check_no_error(error);
}

static void run_clear(Run *run)
{
    execute_free(run->run);
    graph_free(run->graph);
    for (int i = 0; i < N_INPUTS; i++) {
        tensor_free(run->inputs[i]);
    }
    tensor_free(run->a_log);
    tensor_free(run->dt);
    tensor_free(run->d_o);
}

/* In maximum norm, against the largest number or `floor`. */
static void check_near(const Tensor *got, const Tensor *want, double bound, double floor)
{
    double size = floor, off = 0;
    for (int64_t i = 0; i < tensor_numel(want); i++) {
        size = MAX(size, fabs(tensor_get(want, i)));
        off = MAX(off, fabs(tensor_get(got, i) - tensor_get(want, i)));
    }
    if (!(off <= bound * size)) {
        print_error("%" G_GINT64_FORMAT " numbers: off by %g of %g, bound %g\n", tensor_numel(want), off, size, bound);
        fail();
    }
}

static void check_runs(const Case *got_case, const Case *want_case, double bound)
{
    Run got, want;
    run_init(&got, got_case);
    run_init(&want, want_case);
    check_near(execute_value(got.run, got.o), execute_value(want.run, want.o), bound, 0);
    for (int i = 0; i < N_INPUTS; i++) {
        check_near(execute_grad(got.run, got.tensors[i]), execute_grad(want.run, want.tensors[i]), bound, 0);
    }
    for (int i = 0; i < 2; i++) {
        /* sums over all tokens, whose terms are near 1 and cancel */
        check_near(execute_param_grad(got.run, i), execute_param_grad(want.run, i), bound, 1);
    }
    run_clear(&got);
    run_clear(&want);
}

static void test_forms(void **state)
{
    (void)state;
    for (int kda = 0; kda < 2; kda++) {
        Case chunked = {kda, FALSE, 83, 8, TENSOR_F64}, recurrent = {kda, TRUE, 83, 8, TENSOR_F64};
        check_runs(&chunked, &recurrent, 1e-12);
    }
}

/* kernels.md 18, T = 256, d = 64: the chunked form within 2e-5, the recurrent one within 5e-6. */
static void test_float32(void **state)
{
    (void)state;
    for (int kda = 0; kda < 2; kda++) {
        Case want = {kda, FALSE, 256, DIM, TENSOR_F64};
        Case chunked = {kda, FALSE, 256, DIM, TENSOR_F32}, recurrent = {kda, TRUE, 256, DIM, TENSOR_F32};
        check_runs(&chunked, &want, 2e-5);
        check_runs(&recurrent, &want, 5e-6);
    }
}

/* A rank without tokens: nothing happens, and the gradients of parameters are zero. */
static void test_no_tokens(void **state)
{
    (void)state;
    for (int kda = 0; kda < 2; kda++) {
        Case empty = {kda, FALSE, 0, 8, TENSOR_F64};
        Run run;
        run_init(&run, &empty);
        const Tensor *da_log = execute_param_grad(run.run, 0);
        check_close(tensor_get(da_log, 0), 0, 0);
        run_clear(&run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_float32),
        cmocka_unit_test(test_no_tokens),
    };
    return cmocka_run_group_tests_name("gdn", tests, NULL, NULL);
}
