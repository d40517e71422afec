#include "models/delta-heads.h"

#include <string.h>

#include "models/real-math.h"

#define NORM_EPS ((real)1e-6)

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
