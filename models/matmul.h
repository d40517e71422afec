/*
 * Matrix products: C = alpha op(A) op(B) + beta C, row-major, in double and float.
 *
 * Three ways to compute them, which agree up to rounding: the BLAS that the program is linked with, blocked kernels of
 * our own (models/matmul-blocked.h), and the plain triple loop, which judges the others. The way is chosen once, by
 * what the processor can do and not by a clock, so that a machine always computes the same bits:
 *  - BLAS, one thread, if its kernels use the widest vectors of this processor;
 *  - our own if not (OpenBLAS takes an unknown processor for one of 2004), or if BLAS fails the self-test against the
 *    plain loop: some builds compute wrong results on some processors.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

/* Shape of a product: C is m x n, the inner size is k; ld = elements from one row to the next as stored. */
typedef struct Matmul {
    int64_t m, n, k;
    gboolean trans_a; /* A is stored k x m */
    gboolean trans_b; /* B is stored n x k */
    int64_t lda, ldb, ldc;
    double alpha, beta; /* beta 0: C is not read */
} Matmul;

typedef enum MatmulWay { MATMUL_BLAS, MATMUL_BLOCKED, MATMUL_NAIVE, N_MATMUL_WAYS } MatmulWay;

/* The product in the way chosen for this machine. Sizes may be 0. Safe in several threads. */
void matmul_f64(const Matmul *shape, const double *a, const double *b, double *c);
void matmul_f32(const Matmul *shape, const float *a, const float *b, float *c);

/* Dense operands, alpha 1: rows end where the next begin. */
void matmul_dense_f64(Matmul shape, const double *a, const double *b, double *c);
void matmul_dense_f32(Matmul shape, const float *a, const float *b, float *c);

/* The product in a given way: for tests and benchmarks. */
void matmul_by_f64(MatmulWay way, const Matmul *shape, const double *a, const double *b, double *c);
void matmul_by_f32(MatmulWay way, const Matmul *shape, const float *a, const float *b, float *c);

/* The way chosen here, and why in words ("OpenBLAS Zen"). */
MatmulWay matmul_way(const char **ret_reason);

/* Pure choice: what a processor with these vectors (0 none, 1 AVX, 2 AVX2 and FMA, 3 AVX-512) does with that BLAS core.
 */
MatmulWay matmul_choose(int vector_level, const char *blas_core, gboolean blas_right, gboolean blocked_right);
