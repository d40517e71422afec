/*
 * Heads of linear attention: L2 norms of q and k, and copies between tokens that hold all heads and dense arrays of one.
 */
#pragma once

#include <stdint.h>

#include "models/real.h"

/* y = x r, r = (sum x^2 + 1e-6)^-1/2 (kernels.md 1.2), for n vectors of size d. 3 d + 2 operations each. */
void REAL_NAME(delta_norm_forward)(const real *x, int64_t n, int64_t d, real *y, real *r);

/* dx = r (dy - y (y dy)) in place: dy becomes dx. 5 d operations each. */
void REAL_NAME(delta_norm_backward)(const real *y, const real *r, int64_t n, int64_t d, real *dy);

/* n rows of d elements, `stride` apart, to a dense array and back. */
void REAL_NAME(delta_gather)(const real *from, int64_t stride, int64_t n, int64_t d, real *to);
void REAL_NAME(delta_scatter)(const real *from, int64_t n, int64_t d, real *to, int64_t stride);
