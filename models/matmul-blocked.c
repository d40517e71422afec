#include "models/matmul-blocked.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define MATMUL_HAS_VECTORS 1
#include <immintrin.h>
#else
#define MATMUL_HAS_VECTORS 0
#endif

/*
 * Tiles: rows x two vectors of columns, as many sums as registers allow beside two of B and one of A. Blocks: a panel
 * block of A stays in a second-level cache of 512 KiB and more, one of B in the third level.
 */
enum {
    PLAIN_M = 4,
    PLAIN_N = 8,
    AVX2_M = 6,
    AVX512_M = 14,
    TILE_MAX = 14 * 32,
    BLOCK_K = 256,
    BLOCK_BYTES_M = 192 * 1024,
    BLOCK_BYTES_N = 4 * 1024 * 1024,
};

int matmul_vector_level(void)
{
#if MATMUL_HAS_VECTORS
    if (__builtin_cpu_supports("avx512f")) {
        return 3;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return 2;
    }
    return __builtin_cpu_supports("avx") ? 1 : 0;
#else
    return 0;
#endif
}

static void *matmul_buffer(int64_t bytes)
{
    void *buffer = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64));
    g_assert(buffer != NULL);
    return buffer;
}

#define REAL         double
#define SUFFIX(name) name##_f64
#define TILE_N2      8
#define TILE_N3      16
#define VEC2         __m256d
#define ZERO2        _mm256_setzero_pd
#define SET2(from)   _mm256_broadcast_sd(from)
#define LOAD2        _mm256_load_pd
#define LOADU2       _mm256_loadu_pd
#define STORE2       _mm256_storeu_pd
#define FMA2         _mm256_fmadd_pd
#define VEC3         __m512d
#define ZERO3        _mm512_setzero_pd
#define SET3         _mm512_set1_pd
#define LOAD3        _mm512_load_pd
#define LOADU3       _mm512_loadu_pd
#define STORE3       _mm512_storeu_pd
#define FMA3         _mm512_fmadd_pd
#include "models/matmul-tile.h"
#undef REAL
#undef SUFFIX
#undef TILE_N2
#undef TILE_N3
#undef VEC2
#undef ZERO2
#undef SET2
#undef LOAD2
#undef LOADU2
#undef STORE2
#undef FMA2
#undef VEC3
#undef ZERO3
#undef SET3
#undef LOAD3
#undef LOADU3
#undef STORE3
#undef FMA3

#define REAL         float
#define SUFFIX(name) name##_f32
#define TILE_N2      16
#define TILE_N3      32
#define VEC2         __m256
#define ZERO2        _mm256_setzero_ps
#define SET2(from)   _mm256_broadcast_ss(from)
#define LOAD2        _mm256_load_ps
#define LOADU2       _mm256_loadu_ps
#define STORE2       _mm256_storeu_ps
#define FMA2         _mm256_fmadd_ps
#define VEC3         __m512
#define ZERO3        _mm512_setzero_ps
#define SET3         _mm512_set1_ps
#define LOAD3        _mm512_load_ps
#define LOADU3       _mm512_loadu_ps
#define STORE3       _mm512_storeu_ps
#define FMA3         _mm512_fmadd_ps
#include "models/matmul-tile.h"
