/*
 * Blocked matrix product for one number type; included by matmul-blocked.c once for each.
 *
 * Needs: REAL (double or float), SUFFIX(name), VEC2 and VEC3 (vectors of 32 and 64 bytes) with their SET, LOAD, STORE
 * and FMA forms (SET2, LOAD2, …), and TILE_N2, TILE_N3 (two vectors of columns).
 */

/*
 * Tile kernels: c[row][col] += alpha times the sum over k of a[k][row] b[k][col], for one panel of A and one of B.
 */
static void SUFFIX(tile_plain)(int64_t k, REAL alpha, const REAL *a, const REAL *b, REAL *c, int64_t ldc)
{
    REAL sum[PLAIN_M][PLAIN_N] = {{0}};
    for (int64_t p = 0; p < k; p++) {
        for (int i = 0; i < PLAIN_M; i++) {
            for (int j = 0; j < PLAIN_N; j++) {
                sum[i][j] += a[p * PLAIN_M + i] * b[p * PLAIN_N + j];
            }
        }
    }
    for (int i = 0; i < PLAIN_M; i++) {
        for (int j = 0; j < PLAIN_N; j++) {
            c[i * ldc + j] += alpha * sum[i][j];
        }
    }
}

#if MATMUL_HAS_VECTORS
__attribute__((target("avx2,fma"))) static void SUFFIX(tile_avx2)(int64_t k, REAL alpha, const REAL *a, const REAL *b,
                                                                  REAL *c, int64_t ldc)
{
    VEC2 sum[AVX2_M][2];
#pragma GCC unroll 16
    for (int i = 0; i < AVX2_M; i++) {
        sum[i][0] = ZERO2();
        sum[i][1] = ZERO2();
        __builtin_prefetch(c + i * ldc, 1);
    }
#pragma GCC unroll 4
    for (int64_t p = 0; p < k; p++) {
        VEC2 b0 = LOAD2(b + p * TILE_N2);
        VEC2 b1 = LOAD2(b + p * TILE_N2 + TILE_N2 / 2);
#pragma GCC unroll 16
        for (int i = 0; i < AVX2_M; i++) {
            VEC2 ai = SET2(a + p * AVX2_M + i);
            sum[i][0] = FMA2(ai, b0, sum[i][0]);
            sum[i][1] = FMA2(ai, b1, sum[i][1]);
        }
    }
    VEC2 factor = SET2(&alpha);
#pragma GCC unroll 16
    for (int i = 0; i < AVX2_M; i++) {
        REAL *row = c + i * ldc;
        STORE2(row, FMA2(factor, sum[i][0], LOADU2(row)));
        STORE2(row + TILE_N2 / 2, FMA2(factor, sum[i][1], LOADU2(row + TILE_N2 / 2)));
    }
}

__attribute__((target("avx512f"))) static void SUFFIX(tile_avx512)(int64_t k, REAL alpha, const REAL *a, const REAL *b,
                                                                   REAL *c, int64_t ldc)
{
    VEC3 sum[AVX512_M][2];
#pragma GCC unroll 16
    for (int i = 0; i < AVX512_M; i++) {
        sum[i][0] = ZERO3();
        sum[i][1] = ZERO3();
        __builtin_prefetch(c + i * ldc, 1);
    }
#pragma GCC unroll 4
    for (int64_t p = 0; p < k; p++) {
        VEC3 b0 = LOAD3(b + p * TILE_N3);
        VEC3 b1 = LOAD3(b + p * TILE_N3 + TILE_N3 / 2);
#pragma GCC unroll 16
        for (int i = 0; i < AVX512_M; i++) {
            VEC3 ai = SET3(a[p * AVX512_M + i]);
            sum[i][0] = FMA3(ai, b0, sum[i][0]);
            sum[i][1] = FMA3(ai, b1, sum[i][1]);
        }
    }
    VEC3 factor = SET3(alpha);
#pragma GCC unroll 16
    for (int i = 0; i < AVX512_M; i++) {
        REAL *row = c + i * ldc;
        STORE3(row, FMA3(factor, sum[i][0], LOADU3(row)));
        STORE3(row + TILE_N3 / 2, FMA3(factor, sum[i][1], LOADU3(row + TILE_N3 / 2)));
    }
}
#endif

/* Sizes and kernel of a level. */
typedef struct SUFFIX(Tile) {
    int m, n;
    void (*kernel)(int64_t k, REAL alpha, const REAL *a, const REAL *b, REAL *c, int64_t ldc);
} SUFFIX(Tile);

static SUFFIX(Tile) SUFFIX(tile_of)(int level)
{
#if MATMUL_HAS_VECTORS
    if (level >= 3) {
        return (SUFFIX(Tile)){AVX512_M, TILE_N3, SUFFIX(tile_avx512)};
    }
    if (level == 2) {
        return (SUFFIX(Tile)){AVX2_M, TILE_N2, SUFFIX(tile_avx2)};
    }
#endif
    (void)level;
    return (SUFFIX(Tile)){PLAIN_M, PLAIN_N, SUFFIX(tile_plain)};
}

/*
 * Copies a block of `lines` x k numbers into panels of `width` lines: inside a panel the lines' k-th numbers are
 * neighbours. line_step and k_step are the distances in the source. Lines that lie along k are copied a few numbers at
 * a time, so that what is written stays in the first-level cache.
 */
static void SUFFIX(pack)(const REAL *src, int64_t lines, int64_t k, int64_t line_step, int64_t k_step, int width,
                         REAL *dst)
{
    enum { STRIP = 16 };
    for (int64_t first = 0; first < lines; first += width, dst += k * width) {
        int n = (int)MIN(width, lines - first);
        const REAL *from = src + first * line_step;
        if (line_step == 1 && n == width) {
            for (int64_t p = 0; p < k; p++) {
                memcpy(dst + p * width, from + p * k_step, (size_t)width * sizeof(REAL));
            }
            continue;
        }
        if (n < width) {
            memset(dst, 0, (size_t)(k * width) * sizeof(REAL));
        }
        for (int64_t strip = 0; strip < k; strip += STRIP) {
            int64_t end = MIN(strip + STRIP, k);
            for (int i = 0; i < n; i++) {
                for (int64_t p = strip; p < end; p++) {
                    dst[p * width + i] = from[i * line_step + p * k_step];
                }
            }
        }
    }
}

/* A tile at the edge: into a whole one first, of which the part that exists is added. */
static void SUFFIX(edge_tile)(const SUFFIX(Tile) * tile, int64_t m, int64_t n, int64_t k, REAL alpha, const REAL *a,
                              const REAL *b, REAL *c, int64_t ldc)
{
    REAL whole[TILE_MAX] __attribute__((aligned(64)));
    memset(whole, 0, (size_t)(tile->m * tile->n) * sizeof(REAL));
    tile->kernel(k, alpha, a, b, whole, tile->n);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            c[i * ldc + j] += whole[i * tile->n + j];
        }
    }
}

/* One packed block of A times one of B, added to C. */
static void SUFFIX(multiply_block)(const SUFFIX(Tile) * tile, int64_t m, int64_t n, int64_t k, const REAL *a,
                                   const REAL *b, REAL *c, int64_t ldc, REAL alpha)
{
    for (int64_t j = 0; j < n; j += tile->n) {
        int64_t n_cols = MIN(tile->n, n - j);
        for (int64_t i = 0; i < m; i += tile->m) {
            int64_t n_rows = MIN(tile->m, m - i);
            if (n_rows == tile->m && n_cols == tile->n) {
                tile->kernel(k, alpha, a + i * k, b + j * k, c + i * ldc + j, ldc);
            } else {
                SUFFIX(edge_tile)(tile, n_rows, n_cols, k, alpha, a + i * k, b + j * k, c + i * ldc + j, ldc);
            }
        }
    }
}

static void SUFFIX(scale)(const Matmul *shape, REAL *c)
{
    REAL beta = (REAL)shape->beta;
    for (int64_t i = 0; i < shape->m; i++) {
        REAL *row = c + i * shape->ldc;
        if (shape->beta == 0) {
            memset(row, 0, (size_t)shape->n * sizeof(REAL));
        } else if (shape->beta != 1) {
            for (int64_t j = 0; j < shape->n; j++) {
                row[j] *= beta;
            }
        }
    }
}

void SUFFIX(matmul_blocked_level)(int level, const Matmul *shape, const REAL *a, const REAL *b, REAL *c)
{
    SUFFIX(Tile) tile = SUFFIX(tile_of)(level);
    int64_t row_a = shape->trans_a ? 1 : shape->lda;
    int64_t k_a = shape->trans_a ? shape->lda : 1;
    int64_t k_b = shape->trans_b ? 1 : shape->ldb;
    int64_t col_b = shape->trans_b ? shape->ldb : 1;
    int64_t block_k = MIN(shape->k, BLOCK_K);
    int64_t block_m = MIN(shape->m, BLOCK_BYTES_M / (BLOCK_K * (int64_t)sizeof(REAL)) / tile.m * tile.m);
    int64_t block_n = MIN(shape->n, BLOCK_BYTES_N / (BLOCK_K * (int64_t)sizeof(REAL)) / tile.n * tile.n);
    SUFFIX(scale)(shape, c);
    if (shape->m == 0 || shape->n == 0 || shape->k == 0) {
        return;
    }
    REAL *panel_a = matmul_buffer((block_m + tile.m) * block_k * (int64_t)sizeof(REAL));
    REAL *panel_b = matmul_buffer((block_n + tile.n) * block_k * (int64_t)sizeof(REAL));
    for (int64_t j = 0; j < shape->n; j += block_n) {
        int64_t n = MIN(block_n, shape->n - j);
        for (int64_t p = 0; p < shape->k; p += block_k) {
            int64_t k = MIN(block_k, shape->k - p);
            SUFFIX(pack)(b + p * k_b + j * col_b, n, k, col_b, k_b, tile.n, panel_b);
            for (int64_t i = 0; i < shape->m; i += block_m) {
                int64_t m = MIN(block_m, shape->m - i);
                SUFFIX(pack)(a + i * row_a + p * k_a, m, k, row_a, k_a, tile.m, panel_a);
                SUFFIX(multiply_block)
                (&tile, m, n, k, panel_a, panel_b, c + i * shape->ldc + j, shape->ldc, (REAL)shape->alpha);
            }
        }
    }
    free(panel_a);
    free(panel_b);
}

void SUFFIX(matmul_blocked)(const Matmul *shape, const REAL *a, const REAL *b, REAL *c)
{
    SUFFIX(matmul_blocked_level)(matmul_vector_level(), shape, a, b, c);
}
