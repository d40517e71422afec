/*
 * The core of sparse attention: one head of one token over the keys selected for it, forward and backward. Keys may
 * have a second part that all heads share.
 */
#pragma once

#include "models/real-math.h"
#include "models/values.h"

/* What the core attends with: keys in two parts, of which the second is shared by all heads. */
typedef struct SparseCore {
    int64_t tokens, heads, kv_heads;
    int64_t main_dim, tail_dim, v_dim;
    int64_t top_k;
    real scale;
    const real *q;      /* [tokens, heads, main_dim + tail_dim] */
    const real *k;      /* [tokens, kv_heads, main_dim] */
    const real *k_tail; /* [tokens, tail_dim] */
    const real *v;      /* [tokens, kv_heads, v_dim] */
    const int64_t *sel;
} SparseCore;

/* Gradients that the core adds to; in the absorbed form k and v are the same tensor. NULL: not wanted. */
typedef struct SparseGradient {
    real *q, *k, *k_tail, *v;
} SparseGradient;

static inline int64_t q_dim(const SparseCore *core)
{
    return core->main_dim + core->tail_dim;
}

static inline const real *key_of(const SparseCore *core, int64_t token, int64_t head)
{
    return core->k + (token * core->kv_heads + head / (core->heads / core->kv_heads)) * core->main_dim;
}

static inline int64_t value_at(const SparseCore *core, int64_t token, int64_t head)
{
    return (token * core->kv_heads + head / (core->heads / core->kv_heads)) * core->v_dim;
}

static inline real scaled_score(const SparseCore *core, const real *q, int64_t token, int64_t head)
{
    const real *k = key_of(core, token, head);
    real sum = 0;
    for (int64_t d = 0; d < core->main_dim; d++) {
        sum += q[d] * k[d];
    }
    for (int64_t d = 0; d < core->tail_dim; d++) {
        sum += q[core->main_dim + d] * core->k_tail[token * core->tail_dim + d];
    }
    return sum * core->scale;
}

/* One head of one token: z and log-sum-exp; p is scratch for top_k numbers. */
static inline real attend(const SparseCore *core, int64_t t, int64_t head, int64_t n, real *p, real *z)
{
    const int64_t *sel = core->sel + t * core->top_k;
    const real *q = core->q + (t * core->heads + head) * q_dim(core);
    real max = 0;
    real sum = 0;
    for (int64_t i = 0; i < n; i++) {
        p[i] = scaled_score(core, q, sel[i], head);
        max = i == 0 ? p[i] : MAX(max, p[i]);
    }
    values_zero(z, core->v_dim);
    for (int64_t i = 0; i < n; i++) {
        const real *v = core->v + value_at(core, sel[i], head);
        real e = real_exp(p[i] - max);
        sum += e;
        for (int64_t j = 0; j < core->v_dim; j++) {
            z[j] += e * v[j];
        }
    }
    for (int64_t j = 0; j < core->v_dim; j++) {
        z[j] /= sum;
    }
    return max + real_log(sum);
}

static inline void add_scaled(real *to, real factor, const real *x, int64_t n)
{
    for (int64_t j = 0; to != NULL && j < n; j++) {
        to[j] += factor * x[j];
    }
}

static inline real dot(const real *x, const real *y, int64_t n)
{
    real sum = 0;
    for (int64_t j = 0; j < n; j++) {
        sum += x[j] * y[j];
    }
    return sum;
}

/* One head of one token: gradients through every selected key (kernels.md 1.5). */
static inline void attend_backward(const SparseCore *core, int64_t row, int64_t n, real lse, const real *z,
                                   const real *dz, const SparseGradient *to)
{
    int64_t t = row / core->heads;
    int64_t head = row % core->heads;
    const int64_t *sel = core->sel + t * core->top_k;
    const real *q = core->q + row * q_dim(core);
    real *dq = to->q != NULL ? to->q + row * q_dim(core) : NULL;
    real product = dot(dz, z, core->v_dim);
    for (int64_t i = 0; i < n; i++) {
        int64_t v_at = value_at(core, sel[i], head);
        int64_t tail_at = sel[i] * core->tail_dim;
        const real *k = key_of(core, sel[i], head);
        real p = real_exp(scaled_score(core, q, sel[i], head) - lse);
        real ds = p * (dot(dz, core->v + v_at, core->v_dim) - product) * core->scale;
        add_scaled(dq, ds, k, core->main_dim);
        add_scaled(to->k != NULL ? to->k + (k - core->k) : NULL, ds, q, core->main_dim);
        add_scaled(to->v != NULL ? to->v + v_at : NULL, p, dz, core->v_dim);
        if (core->tail_dim > 0) {
            add_scaled(dq != NULL ? dq + core->main_dim : NULL, ds, core->k_tail + tail_at, core->tail_dim);
            add_scaled(to->k_tail != NULL ? to->k_tail + tail_at : NULL, ds, q + core->main_dim, core->tail_dim);
        }
    }
}
