#include "models/matmul.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/matmul-blocked.h"
#include "tests/check.h"

/* Every edge of a tile and of a block, one and zero sizes, padded rows, both factors. */
static const Matmul shapes[] = {
    {.m = 1, .n = 1, .k = 1, .alpha = 1},
    {.m = 3, .n = 5, .k = 7, .alpha = 1, .beta = 1},
    {.m = 6, .n = 16, .k = 256, .alpha = 2, .beta = -0.5},
    {.m = 14, .n = 33, .k = 257, .alpha = 1},
    {.m = 200, .n = 17, .k = 31, .alpha = -1, .beta = 1},
    {.m = 1, .n = 300, .k = 64, .alpha = 1},
    {.m = 129, .n = 1, .k = 513, .alpha = 1},
    {.m = 4, .n = 4, .k = 0, .alpha = 1, .beta = 0.5},
    {.m = 0, .n = 4, .k = 4, .alpha = 1},
    {.m = 4, .n = 0, .k = 4, .alpha = 1},
};

static double number_at(int64_t i, int salt)
{
    return sin((double)(i * 37 + salt * 11) * 0.1);
}

static Matmul transposed(Matmul shape, int how)
{
    shape.trans_a = how & 1;
    shape.trans_b = how >> 1 & 1;
    shape.lda = (shape.trans_a ? shape.m : shape.k) + 3;
    shape.ldb = (shape.trans_b ? shape.k : shape.n) + 1;
    shape.ldc = shape.n + 2;
    return shape;
}

static double *numbers(int64_t n, int salt)
{
    double *x = g_new(double, n + 1);
    for (int64_t i = 0; i < n; i++) {
        x[i] = number_at(i, salt);
    }
    return x;
}

static float *as_float(const double *x, int64_t n)
{
    float *y = g_new(float, n + 1);
    for (int64_t i = 0; i < n; i++) {
        y[i] = (float)x[i];
    }
    return y;
}

/* Runs one product by `way` (or by a level of the blocked kernels) and compares with the plain loop. */
static void check_product(const Matmul *shape, MatmulWay way, int level)
{
    int64_t n_a = (shape->trans_a ? shape->k : shape->m) * shape->lda;
    int64_t n_b = (shape->trans_b ? shape->n : shape->k) * shape->ldb;
    int64_t n_c = shape->m * shape->ldc;
    g_autofree double *a = numbers(n_a, 1);
    g_autofree double *b = numbers(n_b, 2);
    g_autofree double *want = numbers(n_c, 3);
    g_autofree double *got = numbers(n_c, 3);
    g_autofree float *a32 = as_float(a, n_a);
    g_autofree float *b32 = as_float(b, n_b);
    g_autofree float *got32 = as_float(got, n_c);
    matmul_by_f64(MATMUL_NAIVE, shape, a, b, want);
    if (level >= 0) {
        matmul_blocked_level_f64(level, shape, a, b, got);
        matmul_blocked_level_f32(level, shape, a32, b32, got32);
    } else {
        matmul_by_f64(way, shape, a, b, got);
        matmul_by_f32(way, shape, a32, b32, got32);
    }
    for (int64_t i = 0; i < n_c; i++) {
        double size = 1 + (double)shape->k;
        assert_true(fabs(got[i] - want[i]) <= 1e-14 * size);
        assert_true(fabs((double)got32[i] - want[i]) <= 4e-6 * size);
    }
}

static void test_ways_agree(void **state)
{
    (void)state;
    for (size_t s = 0; s < G_N_ELEMENTS(shapes); s++) {
        for (int how = 0; how < 4; how++) {
            Matmul shape = transposed(shapes[s], how);
            check_product(&shape, MATMUL_BLAS, -1);
            for (int level = 0; level <= matmul_vector_level(); level++) {
                check_product(&shape, MATMUL_BLOCKED, level);
            }
        }
    }
}

static void test_dense(void **state)
{
    const double a[] = {1, 2, 3, 4, 5, 6};
    const double b[] = {1, 0, 2, 0, 1, 3};
    double c[4] = {9, 9, 9, 9};
    (void)state;
    matmul_dense_f64((Matmul){.m = 2, .n = 2, .k = 3, .trans_b = TRUE}, a, b, c);
    check_close(c[0], 7, 0);
    check_close(c[1], 11, 0);
    check_close(c[2], 16, 0);
    check_close(c[3], 23, 0);
    matmul_dense_f64((Matmul){.m = 2, .n = 2, .k = 3, .trans_b = TRUE, .beta = 1}, a, b, c);
    check_close(c[3], 46, 0);
}

static void test_choice(void **state)
{
    static const struct {
        int level;
        const char *core;
        gboolean blas_right, blocked_right;
        MatmulWay way;
    } cases[] = {
        {2, "Zen", TRUE, TRUE, MATMUL_BLAS},          {2, "Haswell", TRUE, TRUE, MATMUL_BLAS},
        {3, "SkylakeX", TRUE, TRUE, MATMUL_BLAS},     {3, "Prescott", TRUE, TRUE, MATMUL_BLOCKED},
        {2, "Prescott", TRUE, TRUE, MATMUL_BLOCKED},  {3, "Haswell", TRUE, TRUE, MATMUL_BLOCKED},
        {2, "NewName", TRUE, TRUE, MATMUL_BLOCKED},   {1, "Prescott", TRUE, TRUE, MATMUL_BLAS},
        {3, NULL, TRUE, TRUE, MATMUL_BLAS},           {3, "Prescott", TRUE, FALSE, MATMUL_BLAS},
        {3, "SkylakeX", FALSE, TRUE, MATMUL_BLOCKED}, {3, "SkylakeX", FALSE, FALSE, MATMUL_NAIVE},
    };
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        check_int(matmul_choose(cases[i].level, cases[i].core, cases[i].blas_right, cases[i].blocked_right),
                  cases[i].way);
    }
}

static void test_way_here(void **state)
{
    const char *reason = NULL;
    (void)state;
    assert_true(matmul_way(&reason) != MATMUL_NAIVE);
    assert_non_null(reason);
    assert_true(strlen(reason) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ways_agree),
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_way_here),
    };
    return cmocka_run_group_tests_name("matmul", tests, NULL, NULL);
}
