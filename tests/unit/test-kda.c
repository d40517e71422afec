/*
 * KDA: published numbers of one head (both gates, forward and every gradient), the recurrent form against the chunked
 * one through the operator, float32 against float64, documents.
 */
#include "tests/check.h"

#include "models/delta-op.h"
#include "models/execute.h"
#include "models/ops/kda.h"

enum { T = 10, DK = 4, DV = 3, N_INPUTS = 6 };

/* Sum, sum of x_i cos(0.11 i), last element. */
typedef struct Sums {
    double sum, wsum, last;
} Sums;

/* Elements amp sin(0.37 i + phase). */
static Tensor *fill(int64_t rows, int64_t width, double phase, double amp)
{
    Tensor *tensor = tensor_new_2d(TENSOR_F64, rows, width);
    for (int64_t i = 0; i < rows * width; i++) {
        tensor_set(tensor, i, amp * sin(0.37 * (double)i + phase));
    }
    return tensor;
}

static void check_sums(const Tensor *x, Sums want, const char *what)
{
    Sums got = {0};
    int64_t n = tensor_numel(x);
    for (int64_t i = 0; i < n; i++) {
        got.sum += tensor_get(x, i);
        got.wsum += tensor_get(x, i) * cos(0.11 * (double)i);
    }
    got.last = tensor_get(x, n - 1);
    gboolean good =
        fabs(got.sum - want.sum) < 1e-10 && fabs(got.wsum - want.wsum) < 1e-10 && fabs(got.last - want.last) < 1e-10;
    if (!good) {
        print_error("%s: %.12g %.12g %.12g, want %.12g %.12g %.12g\n", what, got.sum, got.wsum, got.last, want.sum,
                    want.wsum, want.last);
        fail();
    }
}

typedef struct Golden {
    const char *name;
    KdaGate gate;
    Sums o, last_state, dq, dk, dv, dg, dbeta, dstate, dz;
    double da_log;
    Sums ddt;
} Golden;

static const Golden goldens[] = {
    {"bounded",
     KDA_GATE_BOUNDED,
     {0.494026223547, 0.699670346367, -0.0970780974675},
     {-1.53577670921, -1.16694392032, -0.128794640286},
     {0.359692809245, 0.412409457523, 0.00938475165795},
     {-0.292046277913, -0.195240006108, 0.420999386607},
     {1.02525366973, 1.24913482401, -0.139375651144},
     {0.753718601999, -0.0930653480036, 0.255542089005},
     {4.1898325449, 3.55301743593, 0.0803052790822},
     {0.0234947233616, 0.0105505616667, 0.00907221705998},
     {-0.672883692767, 0.0771689558465, -0.285516117832},
     0.752545043572,
     {-0.672883692767, -0.649185874953, -0.369592566036}},
    {"softplus",
     KDA_GATE_SOFTPLUS,
     {0.521436392838, 0.906366925543, -0.134388605184},
     {-1.90488444165, -1.36856059111, -0.208983396189},
     {0.577241039697, 0.257719939566, 0.0361199204043},
     {-0.860743836523, -0.137756704542, 0.377410390548},
     {0.622014679321, 1.73504476221, -0.139375651144},
     {1.37129150986, -0.170961147295, 0.521655249417},
     {5.61206098469, 4.5388839578, 0.0498211761462},
     {0.188908901794, 0.0913392120397, 0.0669115532314},
     {-0.487961649558, 0.0684884746859, -0.184655741041},
     -0.660546868895,
     {-0.487961649558, -0.470705283523, -0.264036414486}},
};

/* One head in a graph, with states. */
typedef struct Fixture {
    Graph *graph;
    RowCounts rows;
    Tensor *inputs[N_INPUTS], *a_log, *dt, *d_o, *dlast;
    Execution *run;
    int tensors[N_INPUTS], o, last;
} Fixture;

static void fixture_init(Fixture *f, const KdaAttr *attr)
{
    static const char *const names[] = {"q", "k", "v", "z", "beta", "state"};
    const int64_t widths[] = {DK, DK, DV, DK, 1, DK * DV};
    *f = (Fixture){.graph = graph_new(DTYPE_FP64)};
    f->rows = (RowCounts){.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = T, [ROWS_SEQUENCES] = 1}, .seq_len = T};
    for (int i = 0; i < N_INPUTS; i++) {
        f->tensors[i] =
            graph_add_input(f->graph, names[i], i < 5 ? ROWS_TOKENS : ROWS_SEQUENCES, widths[i], DTYPE_FP64, TRUE);
    }
    f->o = kda_add(f->graph, "attn", f->tensors, attr);
    f->last = graph_add_tensor(f->graph, "last", ROWS_SEQUENCES, DK * DV, DTYPE_FP64);
    delta_op_add_states(f->graph, graph_op(f->graph, 0), f->tensors[5], f->last);
    graph_add_output(f->graph, f->o);
    graph_add_output(f->graph, f->last);
    graph_finish(f->graph);
    f->inputs[0] = fill(T, DK, 0.1, 1);
    f->inputs[1] = fill(T, DK, 0.7, 1);
    f->inputs[2] = fill(T, DV, 1.3, 1);
    f->inputs[3] = fill(T, DK, 2.1, 2);
    f->inputs[4] = fill(T, 1, 0.9, 1);
    f->inputs[5] = fill(1, DK * DV, 3.3, 0.5);
    f->a_log = tensor_new_2d(TENSOR_F64, 1, 1);
    tensor_set(f->a_log, 0, 0.25);
    f->dt = fill(1, DK, 0.4, 0.5);
    f->d_o = fill(T, DV, 0.2, 1);
    f->dlast = fill(1, DK * DV, 1.1, 1);
}

static void fixture_run(Fixture *f)
{
    GError *error = NULL;
    f->run = execute_new(f->graph, &f->rows, TENSOR_F64);
    for (int i = 0; i < N_INPUTS; i++) {
        execute_put(f->run, f->tensors[i], f->inputs[i]);
    }
    if (f->graph->params->len == 2) {
        execute_put_param(f->run, 0, f->a_log);
        execute_put_param(f->run, 1, f->dt);
    }
    execute_forward(f->run, &error);
    check_no_error(error);
    execute_put_grad(f->run, f->o, f->d_o);
    execute_put_grad(f->run, f->last, f->dlast);
    execute_backward(f->run, &error);
    check_no_error(error);
}

static void fixture_clear(Fixture *f)
{
    execute_free(f->run);
    graph_free(f->graph);
    for (int i = 0; i < N_INPUTS; i++) {
        tensor_free(f->inputs[i]);
    }
    tensor_free(f->a_log);
    tensor_free(f->dt);
    tensor_free(f->d_o);
    tensor_free(f->dlast);
}

/* Through the gate; dbeta stands before the sigmoid's derivative. */
static void check_gated(const Golden *want, const KdaAttr *attr)
{
    Fixture f;
    fixture_init(&f, attr);
    fixture_run(&f);
    check_sums(execute_value(f.run, f.o), want->o, "o");
    check_sums(execute_value(f.run, f.last), want->last_state, "last state");
    check_sums(execute_grad(f.run, f.tensors[0]), want->dq, "dq");
    check_sums(execute_grad(f.run, f.tensors[1]), want->dk, "dk");
    check_sums(execute_grad(f.run, f.tensors[2]), want->dv, "dv");
    check_sums(execute_grad(f.run, f.tensors[3]), want->dz, "dz");
    check_sums(execute_grad(f.run, f.tensors[5]), want->dstate, "dstate");
    check_close(tensor_get(execute_param_grad(f.run, 0), 0), want->da_log, 1e-10);
    check_sums(execute_param_grad(f.run, 1), want->ddt, "ddt");
    g_autoptr(Tensor) dbeta = tensor_dup(execute_grad(f.run, f.tensors[4]));
    for (int64_t t = 0; t < T; t++) {
        double s = 1 / (1 + exp(-tensor_get(f.inputs[4], t)));
        tensor_set(dbeta, t, tensor_get(dbeta, t) / (s * (1 - s)));
    }
    check_sums(dbeta, want->dbeta, "dbeta");
    fixture_clear(&f);
}

/* The core alone, on normed q and k, gives dg. */
static void check_core(const Golden *want, const KdaAttr *gated)
{
    Fixture f;
    KdaAttr attr = *gated;
    attr.gate = KDA_GATE_NONE;
    fixture_init(&f, &attr);
    for (int64_t t = 0; t < T; t++) {
        for (int i = 0; i < 2; i++) {
            double sum = 1e-6;
            for (int64_t d = 0; d < DK; d++) {
                sum += pow(tensor_get(f.inputs[i], t * DK + d), 2);
            }
            for (int64_t d = 0; d < DK; d++) {
                tensor_set(f.inputs[i], t * DK + d, tensor_get(f.inputs[i], t * DK + d) / sqrt(sum));
            }
        }
        for (int64_t d = 0; d < DK; d++) {
            double x = tensor_get(f.inputs[3], t * DK + d) + tensor_get(f.dt, d);
            tensor_set(f.inputs[3], t * DK + d, kda_gate_at_f64(gated, exp(0.25), x).g);
        }
        tensor_set(f.inputs[4], t, 1 / (1 + exp(-tensor_get(f.inputs[4], t))));
    }
    fixture_run(&f);
    check_sums(execute_value(f.run, f.o), want->o, "o");
    check_sums(execute_grad(f.run, f.tensors[3]), want->dg, "dg");
    check_sums(execute_grad(f.run, f.tensors[4]), want->dbeta, "dbeta");
    fixture_clear(&f);
}

static void test_published(void **state)
{
    const Golden *want = *state;
    for (int recurrent = 0; recurrent < 2; recurrent++) {
        for (int64_t chunk = 1; chunk <= 64; chunk *= 4) {
            KdaAttr attr = {1, 1, DK, DV, chunk, want->gate, -5, 1, recurrent};
            check_gated(want, &attr);
            check_core(want, &attr);
        }
    }
}

int main(void)
{
    return check_run_cases("kda", test_published, goldens, G_N_ELEMENTS(goldens), sizeof goldens[0]);
}
