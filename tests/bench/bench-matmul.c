/*
 * Single-precision matrix products, one thread: the way that models/matmul.h chooses and the blocked kernels, against
 * the best that BLAS libraries reach here: OpenBLAS with each of its cores that this processor can run, and BLIS if it
 * is installed. Target: 85 % of the best, at every shape.
 *
 * OpenBLAS reads its core when it is loaded, so that the program runs itself again for each.
 */
#include <cblas.h>
#include <dlfcn.h>
#include <glib.h>
#include <stdlib.h>
#include <string.h>

#include "models/matmul-blocked.h"
#include "tests/bench/bench.h"

typedef void (*Sgemm)(CBLAS_LAYOUT, CBLAS_TRANSPOSE, CBLAS_TRANSPOSE, int, int, int, float, const float *, int,
                      const float *, int, float, float *, int);

enum { N_REPEATS = 7, N_RUNS = 3 };

static const struct {
    const char *what;
    Matmul shape;
} cases[] = {
    {"forward 1024 x 4096 x 1024", {.m = 1024, .n = 4096, .k = 1024, .trans_b = TRUE}},
    {"input gradient 512 x 1024 x 2048", {.m = 512, .n = 1024, .k = 2048}},
    {"weight gradient 1024 x 1024 x 512", {.m = 1024, .n = 1024, .k = 512, .trans_a = TRUE}},
    {"square 512", {.m = 512, .n = 512, .k = 512, .trans_b = TRUE}},
    {"ragged 333 x 777 x 555", {.m = 333, .n = 777, .k = 555}},
    {"few rows 48 x 2048 x 2048", {.m = 48, .n = 2048, .k = 2048, .trans_b = TRUE}},
};

typedef enum BenchWay { BENCH_CHOSEN, BENCH_BLOCKED, BENCH_CBLAS, N_BENCH_WAYS } BenchWay;

static float *numbers(int64_t n)
{
    float *x = aligned_alloc(64, (size_t)((n * 4 + 63) / 64 * 64));
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)(i * 7 % 13 - 6) / 8;
    }
    return x;
}

static void multiply(BenchWay way, Sgemm sgemm, const Matmul *s, const float *a, const float *b, float *c)
{
    if (way == BENCH_CHOSEN) {
        matmul_f32(s, a, b, c);
    } else if (way == BENCH_BLOCKED) {
        matmul_blocked_f32(s, a, b, c);
    } else {
        sgemm(CblasRowMajor, s->trans_a ? CblasTrans : CblasNoTrans, s->trans_b ? CblasTrans : CblasNoTrans, (int)s->m,
              (int)s->n, (int)s->k, 1, a, (int)s->lda, b, (int)s->ldb, 0, c, (int)s->ldc);
    }
}

/* Best rate of several repeats, in GFLOP/s. */
static double rate(BenchWay way, Sgemm sgemm, const Matmul *shape)
{
    Matmul s = *shape;
    s.lda = s.trans_a ? s.m : s.k;
    s.ldb = s.trans_b ? s.k : s.n;
    s.ldc = s.n;
    s.alpha = 1;
    float *a = numbers(s.m * s.k);
    float *b = numbers(s.k * s.n);
    float *c = numbers(s.m * s.n);
    double best = 0;
    for (int i = 0; i < N_REPEATS; i++) {
        double start = bench_cpu_s();
        multiply(way, sgemm, &s, a, b, c);
        best = MAX(best, 2e-9 * (double)s.m * (double)s.n * (double)s.k / (bench_cpu_s() - start));
    }
    free(a);
    free(b);
    free(c);
    return best;
}

/* As a child: prints the rate of every case with the OpenBLAS core that the environment names. */
static int print_rates(void)
{
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        printf("%.3f\n", rate(BENCH_CBLAS, cblas_sgemm, &cases[i].shape));
    }
    return 0;
}

/* Rates of a child with an OpenBLAS core; raises best where it is better. */
static void openblas_rates(const char *self, const char *core, double *best)
{
    g_auto(GStrv) env = g_environ_setenv(g_get_environ(), "OPENBLAS_CORETYPE", core, TRUE);
    g_autofree char *path = g_strdup(self);
    char *argv[] = {path, (char[]){"rates"}, NULL};
    g_autofree char *text = NULL;
    if (!g_spawn_sync(NULL, argv, env, G_SPAWN_STDERR_TO_DEV_NULL, NULL, NULL, &text, NULL, NULL, NULL)) {
        return;
    }
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (size_t i = 0; i < G_N_ELEMENTS(cases) && lines[i] != NULL; i++) {
        best[i] = MAX(best[i], g_ascii_strtod(lines[i], NULL));
    }
}

static void blis_rates(double *best)
{
    void *blis = dlopen("libblis.so.4", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    Sgemm sgemm = NULL;
    if (blis == NULL) {
        return;
    }
    *(void **)&sgemm = dlsym(blis, "cblas_sgemm");
    for (size_t i = 0; sgemm != NULL && i < G_N_ELEMENTS(cases); i++) {
        best[i] = MAX(best[i], rate(BENCH_CBLAS, sgemm, &cases[i].shape));
    }
    dlclose(blis);
}

int main(int argc, char **argv)
{
    double best[G_N_ELEMENTS(cases)] = {0};
    double ours[N_BENCH_WAYS][G_N_ELEMENTS(cases)] = {0};
    const char *reason = NULL;
    g_setenv("OPENBLAS_NUM_THREADS", "1", TRUE);
    g_setenv("BLIS_NUM_THREADS", "1", TRUE);
    if (argc > 1) {
        return print_rates();
    }
    matmul_way(&reason);
    printf("chosen here: %s\n", reason);
    /* By turns, so that a neighbour's load falls on all of them. */
    for (int run = 0; run < N_RUNS; run++) {
        openblas_rates(argv[0], "Haswell", best);
        openblas_rates(argv[0], "Zen", best);
        if (matmul_vector_level() >= 3) {
            openblas_rates(argv[0], "SkylakeX", best);
        }
        blis_rates(best);
        for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
            for (int way = 0; way < BENCH_CBLAS; way++) {
                ours[way][i] = MAX(ours[way][i], rate((BenchWay)way, NULL, &cases[i].shape));
            }
        }
    }
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        printf("%-34s chosen %6.1f GFLOP/s, %3.0f %% of the best BLAS (target 85); blocked kernels %6.1f, %3.0f %%\n",
               cases[i].what, ours[BENCH_CHOSEN][i], 100 * ours[BENCH_CHOSEN][i] / best[i], ours[BENCH_BLOCKED][i],
               100 * ours[BENCH_BLOCKED][i] / best[i]);
    }
    return 0;
}
