/*
 * Heads of linear attention: L2 norms of q and k, and copies between tokens that hold all heads and dense arrays of
 * one.
 */
#pragma once

#include "models/delta-rule.h"
#include "models/tensor.h"

/* Dense arrays of one value head, `rule` over them. */
typedef struct DeltaArrays {
    DeltaHead rule;
    real *block;     /* owns the rest */
    real *q, *k, *w; /* [n, dk] */
    real *v, *o;     /* [n, dv] */
    real *a, *p;     /* [n, chunk] */
    real *beta;      /* [n] */
} DeltaArrays;

/* Arrays for n rows; free with delta_arrays_clear. */
void REAL_NAME(delta_arrays_init)(DeltaArrays *arrays, const DeltaShape *shape, int64_t n);
void REAL_NAME(delta_arrays_clear)(DeltaArrays *arrays);

/* y = x r, r = (sum x^2 + 1e-6)^-1/2 (kernels.md 1.2), for n vectors of size d. 3 d + 2 operations each. */
void REAL_NAME(delta_norm_forward)(const real *x, int64_t n, int64_t d, real *y, real *r);

/* dx = r (dy - y (y dy)) in place: dy becomes dx. 5 d operations each. */
void REAL_NAME(delta_norm_backward)(const real *y, const real *r, int64_t n, int64_t d, real *dy);

/* n rows of d elements, `stride` apart, to a dense array and back. */
void REAL_NAME(delta_gather)(const real *from, int64_t stride, int64_t n, int64_t d, real *to);
void REAL_NAME(delta_scatter)(const real *from, int64_t n, int64_t d, real *to, int64_t stride);

/* The state of one sequence and value head in [SEQUENCES, value heads x dk x dv]; NULL for NULL. */
real *REAL_NAME(delta_state_of)(Tensor *states, const DeltaShape *shape, int64_t sequence, int64_t value_head);

/* Elements of all tensors of a list; absent ones have none. */
int64_t REAL_NAME(delta_numel)(Tensor *const *tensors, int n);
int64_t REAL_NAME(delta_numel_const)(const Tensor *const *tensors, int n);
