/*
 * The chunked delta rule against the recurrent one: values and all gradients, over lengths, chunk sizes and the edge
 * cases of gates, write strengths and keys.
 */
#include "tests/check.h"

#include "models/delta-rule.h"

typedef enum Mode { PLAIN, BETA_ZERO, BETA_ONE, NO_DECAY, BOUND_DECAY, HARD_DECAY, ZERO_KEY, NEGATIVE } Mode;

static const struct Case {
    const char *name;
    int64_t n, dk, dv, chunk;
    Mode mode;
    gboolean state;
} cases[] = {
    {"one row", 1, 4, 3, 64, PLAIN, TRUE},
    {"shorter than a chunk", 10, 4, 3, 64, PLAIN, TRUE},
    {"one row over", 65, 5, 2, 64, PLAIN, FALSE},
    {"two chunks and two rows", 130, 8, 8, 64, PLAIN, TRUE},
    {"chunks of 1", 7, 3, 4, 1, PLAIN, TRUE},
    {"chunks of 4", 18, 3, 4, 4, PLAIN, TRUE},
    {"chunks of 7", 20, 3, 4, 7, PLAIN, FALSE},
    {"chunks of 16", 40, 6, 5, 16, PLAIN, TRUE},
    {"chunks of 32, sub-chunk ragged", 57, 6, 5, 32, PLAIN, TRUE},
    {"chunks of 128", 300, 4, 4, 128, PLAIN, TRUE},
    {"nothing is written", 40, 4, 3, 16, BETA_ZERO, TRUE},
    {"overwrite", 40, 4, 3, 16, BETA_ONE, TRUE},
    {"plain delta rule", 70, 4, 3, 64, NO_DECAY, TRUE},
    {"decay at the bound", 150, 4, 3, 64, BOUND_DECAY, TRUE},
    {"decay below every exponent", 150, 4, 3, 64, HARD_DECAY, TRUE},
    {"a zero key", 40, 4, 3, 16, ZERO_KEY, TRUE},
    {"negative eigenvalues", 80, 4, 4, 64, NEGATIVE, TRUE},
};

/* All arrays of a run of one form. */
typedef struct Run {
    DeltaHead head;
    double *q, *k, *v, *w, *beta, *a, *p, *state;
    double *o, *last, *d_o, *dlast, *work;
    DeltaGradients grads;
} Run;

static double wave(int64_t i, double phase)
{
    return sin(0.37 * (double)i + phase) + 0.3 * cos(1.7 * (double)(i * i % 101) + phase);
}

static double *filled(int64_t n, double phase, double size)
{
    double *x = g_new(double, (gsize)n + 1);
    for (int64_t i = 0; i < n; i++) {
        x[i] = size * wave(i, phase);
    }
    return x;
}

static double decay_of(Mode mode, int64_t i)
{
    switch (mode) {
    case NO_DECAY:
        return 1;
    case BOUND_DECAY:
        return exp(-5.0);
    case HARD_DECAY:
        return exp(-60.0 * (1 + sin((double)i)));
    default:
        return exp(-1 - sin(0.9 * (double)i));
    }
}

static double beta_of(Mode mode, int64_t t)
{
    switch (mode) {
    case BETA_ZERO:
        return 0;
    case BETA_ONE:
        return 1;
    case NEGATIVE:
        return 1.8;
    default:
        return 0.5 + 0.4 * sin((double)t);
    }
}

/* Keys of unit length, so that long runs stay bounded. */
static void unit_rows(double *k, int64_t n, int64_t d)
{
    for (int64_t t = 0; t < n; t++) {
        double sum = 0;
        for (int64_t i = 0; i < d; i++) {
            sum += k[t * d + i] * k[t * d + i];
        }
        for (int64_t i = 0; i < d; i++) {
            k[t * d + i] /= sqrt(sum);
        }
    }
}

static void run_init(Run *run, const struct Case *c)
{
    int64_t n = c->n, size = c->dk * c->dv;
    run->q = filled(n * c->dk, 0.1, 0.5);
    run->k = filled(n * c->dk, 0.7, 1);
    run->v = filled(n * c->dv, 1.3, 1);
    run->w = g_new(double, (gsize)(n * c->dk));
    run->beta = g_new(double, (gsize)n);
    run->state = filled(size, 3.3, 0.5);
    run->d_o = filled(n * c->dv, 0.2, 1);
    run->dlast = filled(size, 1.1, 1);
    unit_rows(run->k, n, c->dk);
    for (int64_t i = 0; i < n * c->dk; i++) {
        run->w[i] = decay_of(c->mode, i);
    }
    for (int64_t t = 0; t < n; t++) {
        run->beta[t] = beta_of(c->mode, t);
    }
    for (int64_t i = 0; c->mode == ZERO_KEY && i < c->dk; i++) {
        run->k[3 * c->dk + i] = 0;
    }
    run->a = g_new0(double, (gsize)(n * c->chunk));
    run->p = g_new0(double, (gsize)(n * c->chunk));
    run->o = g_new0(double, (gsize)(n * c->dv));
    run->last = g_new0(double, (gsize)size);
    run->grads = (DeltaGradients){
        .q = g_new0(double, (gsize)(n * c->dk)),
        .k = g_new0(double, (gsize)(n * c->dk)),
        .g = g_new0(double, (gsize)(n * c->dk)),
        .v = g_new0(double, (gsize)(n * c->dv)),
        .beta = g_new0(double, (gsize)n),
        .state = g_new0(double, (gsize)size),
        .a = g_new0(double, (gsize)(n * c->chunk)),
        .p = g_new0(double, (gsize)(n * c->chunk)),
    };
    DeltaShape shape = {1, 1, c->dk, c->dv, c->chunk, TRUE};
    run->work = g_new(double, (gsize)delta_work_numel(&shape, n));
    run->head = (DeltaHead){n,      c->dk,  c->dv,    c->chunk,  run->q,
                            run->k, run->v, run->w,   run->beta, c->state ? run->state : NULL,
                            run->a, run->p, run->work};
}

static void run_clear(Run *run)
{
    double *all[] = {run->q,       run->k,       run->v,       run->w,       run->beta,       run->a,
                     run->p,       run->state,   run->o,       run->last,    run->d_o,        run->dlast,
                     run->grads.q, run->grads.k, run->grads.g, run->grads.v, run->grads.beta, run->grads.state,
                     run->grads.a, run->grads.p, run->work};
    for (guint i = 0; i < G_N_ELEMENTS(all); i++) {
        g_free(all[i]);
    }
}

/* Maximum norm, relative: 1e-12 is what kernels.md asks for. */
static void check_arrays(const double *got, const double *want, int64_t n, const char *what)
{
    double size = 1e-3, off = 0;
    for (int64_t i = 0; i < n; i++) {
        size = MAX(size, fabs(want[i]));
        off = MAX(off, fabs(got[i] - want[i]));
        assert_true(isfinite(got[i]));
    }
    if (!(off <= 1e-12 * size)) {
        print_error("%s differs by %g of %g\n", what, off, size);
        fail();
    }
}

static void test_forms(void **state)
{
    const struct Case *c = *state;
    Run chunked, judge;
    run_init(&chunked, c);
    run_init(&judge, c);
    DeltaUpstream up = {judge.d_o, judge.dlast};
    int64_t keys = c->n * c->dk, values = c->n * c->dv, size = c->dk * c->dv;
    delta_pairs_forward_f64(&chunked.head, chunked.a, chunked.p);
    delta_chunk_forward_f64(&chunked.head, chunked.o, chunked.last);
    delta_recurrent_forward_f64(&judge.head, judge.o, judge.last);
    check_arrays(chunked.o, judge.o, values, "o");
    check_arrays(chunked.last, judge.last, size, "last state");
    delta_chunk_backward_f64(&chunked.head, &up, &chunked.grads);
    delta_pairs_backward_f64(&chunked.head, &chunked.grads);
    delta_decay_finish_f64(&chunked.head, chunked.grads.g);
    delta_recurrent_backward_f64(&judge.head, &up, &judge.grads);
    check_arrays(chunked.grads.q, judge.grads.q, keys, "dq");
    check_arrays(chunked.grads.k, judge.grads.k, keys, "dk");
    check_arrays(chunked.grads.g, judge.grads.g, keys, "dg");
    check_arrays(chunked.grads.v, judge.grads.v, values, "dv");
    check_arrays(chunked.grads.beta, judge.grads.beta, c->n, "dbeta");
    check_arrays(chunked.grads.state, judge.grads.state, size, "dstate");
    if (c->mode == BETA_ONE) { /* the last key reads what it wrote */
        for (int64_t j = 0; j < c->dv; j++) {
            double read = 0;
            for (int64_t d = 0; d < c->dk; d++) {
                read += chunked.last[d * c->dv + j] * chunked.k[(c->n - 1) * c->dk + d];
            }
            check_close(read, chunked.v[(c->n - 1) * c->dv + j], 1e-12);
        }
    }
    run_clear(&chunked);
    run_clear(&judge);
}

int main(void)
{
    return check_run_cases("delta-chunk", test_forms, cases, G_N_ELEMENTS(cases), sizeof cases[0]);
}
