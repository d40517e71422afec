/*
 * Vectors of 32 bytes, for the kernels whose sums must stay in registers: an array of sums goes through memory, and each
 * addition then waits for the store before it. GCC and Clang lower them to what the processor has. Loads and stores need
 * no alignment.
 */
#pragma once

#include <string.h>

#include "models/real.h"

enum { VECTOR = 32 / sizeof(real) }; /* numbers of one */

typedef real Vector __attribute__((vector_size(32)));

static inline __attribute__((always_inline)) void vector_load(Vector *to, const real *from)
{
    memcpy(to, from, sizeof *to);
}

static inline __attribute__((always_inline)) void vector_store(const Vector *from, real *to)
{
    memcpy(to, from, sizeof *from);
}

/* Sum of its numbers, in order. */
static inline __attribute__((always_inline)) real vector_sum(const Vector *x)
{
    real sum = 0;
    for (int i = 0; i < VECTOR; i++) {
        sum += (*x)[i];
    }
    return sum;
}
