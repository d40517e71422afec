#include "models/matmul.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

#include "models/matmul-blocked.h"

/* Present in OpenBLAS alone; NULL with another BLAS. */
extern char *openblas_get_corename(void) __attribute__((weak));
extern void openblas_set_num_threads(int n_threads) __attribute__((weak));

static struct {
    MatmulWay way;
    char reason[64];
} choice;

static void naive_f64(const Matmul *shape, const double *a, const double *b, double *c)
{
    for (int64_t i = 0; i < shape->m; i++) {
        for (int64_t j = 0; j < shape->n; j++) {
            double sum = 0;
            for (int64_t p = 0; p < shape->k; p++) {
                double x = a[shape->trans_a ? p * shape->lda + i : i * shape->lda + p];
                double y = b[shape->trans_b ? j * shape->ldb + p : p * shape->ldb + j];
                sum += x * y;
            }
            double *to = &c[i * shape->ldc + j];
            *to = shape->alpha * sum + (shape->beta == 0 ? 0 : shape->beta * *to);
        }
    }
}

/* Sums in double: as a judge it may be better than what it judges. */
static void naive_f32(const Matmul *shape, const float *a, const float *b, float *c)
{
    for (int64_t i = 0; i < shape->m; i++) {
        for (int64_t j = 0; j < shape->n; j++) {
            double sum = 0;
            for (int64_t p = 0; p < shape->k; p++) {
                float x = a[shape->trans_a ? p * shape->lda + i : i * shape->lda + p];
                float y = b[shape->trans_b ? j * shape->ldb + p : p * shape->ldb + j];
                sum += (double)x * (double)y;
            }
            float *to = &c[i * shape->ldc + j];
            *to = (float)(shape->alpha * sum + (shape->beta == 0 ? 0 : shape->beta * (double)*to));
        }
    }
}

static gboolean is_empty(const Matmul *shape)
{
    return shape->m == 0 || shape->n == 0;
}

void matmul_by_f64(MatmulWay way, const Matmul *shape, const double *a, const double *b, double *c)
{
    if (is_empty(shape)) {
        return;
    }
    if (way == MATMUL_NAIVE || shape->k == 0) {
        naive_f64(shape, a, b, c);
    } else if (way == MATMUL_BLOCKED) {
        matmul_blocked_f64(shape, a, b, c);
    } else {
        g_assert(MAX(MAX(shape->m, shape->n), shape->k) <= G_MAXINT32);
        g_assert(MAX(MAX(shape->lda, shape->ldb), shape->ldc) <= G_MAXINT32);
        cblas_dgemm(CblasRowMajor, shape->trans_a ? CblasTrans : CblasNoTrans,
                    shape->trans_b ? CblasTrans : CblasNoTrans, (int)shape->m, (int)shape->n, (int)shape->k,
                    shape->alpha, a, (int)shape->lda, b, (int)shape->ldb, shape->beta, c, (int)shape->ldc);
    }
}

void matmul_by_f32(MatmulWay way, const Matmul *shape, const float *a, const float *b, float *c)
{
    if (is_empty(shape)) {
        return;
    }
    if (way == MATMUL_NAIVE || shape->k == 0) {
        naive_f32(shape, a, b, c);
    } else if (way == MATMUL_BLOCKED) {
        matmul_blocked_f32(shape, a, b, c);
    } else {
        g_assert(MAX(MAX(shape->m, shape->n), shape->k) <= G_MAXINT32);
        g_assert(MAX(MAX(shape->lda, shape->ldb), shape->ldc) <= G_MAXINT32);
        cblas_sgemm(CblasRowMajor, shape->trans_a ? CblasTrans : CblasNoTrans,
                    shape->trans_b ? CblasTrans : CblasNoTrans, (int)shape->m, (int)shape->n, (int)shape->k,
                    (float)shape->alpha, a, (int)shape->lda, b, (int)shape->ldb, (float)shape->beta, c,
                    (int)shape->ldc);
    }
}

/*
 * Self-test: products whose edges are ragged for every tile, longer than a block of k, in all four transpositions,
 * against the plain loop. Numbers are small integers, so that every way must give the same bits.
 */
enum { TEST_M = 37, TEST_N = 53, TEST_K = 301 };

static gboolean is_right_f64(MatmulWay way)
{
    static double a[TEST_M * TEST_K], b[TEST_K * TEST_N], got[TEST_M * TEST_N], want[TEST_M * TEST_N];
    gboolean right = TRUE;
    for (int i = 0; i < TEST_M * TEST_K; i++) {
        a[i] = (double)(i * 7 % 31 - 15);
    }
    for (int i = 0; i < TEST_K * TEST_N; i++) {
        b[i] = (double)(i * 11 % 29 - 14);
    }
    for (int t = 0; t < 4; t++) {
        Matmul shape = {
            .m = TEST_M, .n = TEST_N, .k = TEST_K, .trans_a = t & 1, .trans_b = t >> 1, .ldc = TEST_N, .alpha = 1};
        shape.lda = shape.trans_a ? TEST_M : TEST_K;
        shape.ldb = shape.trans_b ? TEST_K : TEST_N;
        matmul_by_f64(way, &shape, a, b, got);
        naive_f64(&shape, a, b, want);
        right = right && memcmp(got, want, sizeof want) == 0;
    }
    return right;
}

static gboolean is_right_f32(MatmulWay way)
{
    static float a[TEST_M * TEST_K], b[TEST_K * TEST_N], got[TEST_M * TEST_N], want[TEST_M * TEST_N];
    gboolean right = TRUE;
    for (int i = 0; i < TEST_M * TEST_K; i++) {
        a[i] = (float)(i * 7 % 31 - 15);
    }
    for (int i = 0; i < TEST_K * TEST_N; i++) {
        b[i] = (float)(i * 11 % 29 - 14);
    }
    for (int t = 0; t < 4; t++) {
        Matmul shape = {
            .m = TEST_M, .n = TEST_N, .k = TEST_K, .trans_a = t & 1, .trans_b = t >> 1, .ldc = TEST_N, .alpha = 1};
        shape.lda = shape.trans_a ? TEST_M : TEST_K;
        shape.ldb = shape.trans_b ? TEST_K : TEST_N;
        matmul_by_f32(way, &shape, a, b, got);
        naive_f32(&shape, a, b, want);
        right = right && memcmp(got, want, sizeof want) == 0;
    }
    return right;
}

/* Vectors that an OpenBLAS core uses; cores that are not listed count as the oldest. */
static int core_level(const char *core)
{
    static const struct {
        const char *name;
        int level;
    } cores[] = {
        {"sandybridge", 1}, {"bulldozer", 1}, {"piledriver", 1}, {"steamroller", 1}, {"excavator", 1},
        {"haswell", 2},     {"zen", 2},       {"skylakex", 3},   {"cooperlake", 3},  {"sapphirerapids", 3},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cores); i++) {
        if (g_ascii_strcasecmp(core, cores[i].name) == 0) {
            return cores[i].level;
        }
    }
    return 0;
}

MatmulWay matmul_choose(int vector_level, const char *blas_core, gboolean blas_right, gboolean blocked_right)
{
    gboolean blas_wide = blas_core == NULL || core_level(blas_core) >= vector_level || vector_level < 2;
    if (blas_right && (blas_wide || !blocked_right)) {
        return MATMUL_BLAS;
    }
    return blocked_right ? MATMUL_BLOCKED : MATMUL_NAIVE;
}

static gpointer choose_once(gpointer unused)
{
    const char *core = openblas_get_corename != NULL ? openblas_get_corename() : NULL;
    if (openblas_set_num_threads != NULL) {
        openblas_set_num_threads(1);
    }
    gboolean blas_right = is_right_f64(MATMUL_BLAS) && is_right_f32(MATMUL_BLAS);
    gboolean blocked_right = is_right_f64(MATMUL_BLOCKED) && is_right_f32(MATMUL_BLOCKED);
    choice.way = matmul_choose(matmul_vector_level(), core, blas_right, blocked_right);
    if (choice.way == MATMUL_BLAS) {
        g_snprintf(choice.reason, sizeof choice.reason, "BLAS (%s)", core != NULL ? core : "core unknown");
    } else {
        g_snprintf(choice.reason, sizeof choice.reason, "own kernels: BLAS (%s) %s",
                   core != NULL ? core : "core unknown",
                   blas_right ? "is for older processors" : "failed its self-test");
    }
    (void)unused;
    return &choice;
}

MatmulWay matmul_way(const char **ret_reason)
{
    static GOnce once = G_ONCE_INIT;
    g_once(&once, choose_once, NULL);
    if (ret_reason != NULL) {
        *ret_reason = choice.reason;
    }
    return choice.way;
}

void matmul_f64(const Matmul *shape, const double *a, const double *b, double *c)
{
    matmul_by_f64(matmul_way(NULL), shape, a, b, c);
}

void matmul_f32(const Matmul *shape, const float *a, const float *b, float *c)
{
    matmul_by_f32(matmul_way(NULL), shape, a, b, c);
}

static Matmul dense(Matmul shape)
{
    shape.lda = shape.trans_a ? shape.m : shape.k;
    shape.ldb = shape.trans_b ? shape.k : shape.n;
    shape.ldc = shape.n;
    shape.alpha = 1;
    return shape;
}

void matmul_dense_f64(Matmul shape, const double *a, const double *b, double *c)
{
    shape = dense(shape);
    matmul_f64(&shape, a, b, c);
}

void matmul_dense_f32(Matmul shape, const float *a, const float *b, float *c)
{
    shape = dense(shape);
    matmul_f32(&shape, a, b, c);
}
