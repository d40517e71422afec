#include "models/delta-heads.h"

#include <string.h>

#include "models/real-math.h"

#define NORM_EPS ((real)1e-6)

void REAL_NAME(delta_arrays_init)(DeltaArrays *arrays, const DeltaShape *shape, int64_t n)
{
    int64_t dk = shape->key_dim, dv = shape->value_dim;
    real **parts[] = {&arrays->q, &arrays->k, &arrays->w, &arrays->v,
                      &arrays->o, &arrays->a, &arrays->p, &arrays->beta};
    const int64_t widths[] = {dk, dk, dk, dv, dv, shape->chunk, shape->chunk, 1};
    int64_t total = delta_work_numel(shape, n);
    for (guint i = 0; i < G_N_ELEMENTS(widths); i++) {
        total += n * widths[i];
    }
    real *at = arrays->block = g_new(real, (gsize)total);
    for (guint i = 0; i < G_N_ELEMENTS(widths); i++) {
        *parts[i] = at;
        at += n * widths[i];
    }
    arrays->rule = (DeltaHead){.n = n,
                               .dk = dk,
                               .dv = dv,
                               .chunk = shape->chunk,
                               .q = arrays->q,
                               .k = arrays->k,
                               .v = arrays->v,
                               .w = arrays->w,
                               .beta = arrays->beta,
                               .a = arrays->a,
                               .p = arrays->p,
                               .work = at};
}

void REAL_NAME(delta_arrays_clear)(DeltaArrays *arrays)
{
    g_clear_pointer(&arrays->block, g_free);
}

real *REAL_NAME(delta_state_of)(Tensor *states, const DeltaShape *shape, int64_t sequence, int64_t value_head)
{
    int64_t size = shape->key_dim * shape->value_dim;
    return states != NULL ? real_data(states) + (sequence * shape->value_heads + value_head) * size : NULL;
}

int64_t REAL_NAME(delta_numel)(Tensor *const *tensors, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        sum += tensors[i] != NULL ? tensor_numel(tensors[i]) : 0;
    }
    return sum;
}

int64_t REAL_NAME(delta_numel_const)(const Tensor *const *tensors, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        sum += tensors[i] != NULL ? tensor_numel(tensors[i]) : 0;
    }
    return sum;
}

void REAL_NAME(delta_norm_forward)(const real *x, int64_t n, int64_t d, real *y, real *r)
{
    for (int64_t i = 0; i < n; i++) {
        real sum = 0;
        for (int64_t j = i * d; j < (i + 1) * d; j++) {
            sum += x[j] * x[j];
        }
        r[i] = 1 / real_sqrt(sum + NORM_EPS);
        for (int64_t j = i * d; j < (i + 1) * d; j++) {
            y[j] = x[j] * r[i];
        }
    }
}

void REAL_NAME(delta_norm_backward)(const real *y, const real *r, int64_t n, int64_t d, real *dy)
{
    for (int64_t i = 0; i < n; i++) {
        real dot = 0;
        for (int64_t j = i * d; j < (i + 1) * d; j++) {
            dot += y[j] * dy[j];
        }
        for (int64_t j = i * d; j < (i + 1) * d; j++) {
            dy[j] = r[i] * (dy[j] - y[j] * dot);
        }
    }
}

void REAL_NAME(delta_gather)(const real *from, int64_t stride, int64_t n, int64_t d, real *to)
{
    for (int64_t i = 0; i < n; i++) {
        memcpy(to + i * d, from + i * stride, (size_t)d * sizeof *to);
    }
}

void REAL_NAME(delta_scatter)(const real *from, int64_t n, int64_t d, real *to, int64_t stride)
{
    for (int64_t i = 0; i < n; i++) {
        memcpy(to + i * stride, from + i * d, (size_t)d * sizeof *to);
    }
}
