/*
 * HOT marks a function of plain loops that is worth wider vectors: it is compiled with full optimisation in every
 * build, and a second time for AVX2 where the program loader can choose between the two. No fused multiply-add: both do
 * the same sums in the same order.
 */
#pragma once

#include <stdlib.h> /* __GLIBC__ */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) &&                           \
    !defined(__SANITIZE_ADDRESS__)
#define HOT __attribute__((optimize("O3"), target_clones("avx2", "default")))
#else
#define HOT
#endif
