/*
 * Elementary functions and data access in the precision of the file that includes this (models/real.h).
 */
#pragma once

#include <math.h>

#include "models/real.h"
#include "models/tensor.h"

#ifdef MOESIM_REAL_F32
#define REAL_MATH(name) name##f
#else
#define REAL_MATH(name) name
#endif

static inline real real_exp(real x)
{
    return REAL_MATH(exp)(x);
}

static inline real real_log(real x)
{
    return REAL_MATH(log)(x);
}

static inline real real_log1p(real x)
{
    return REAL_MATH(log1p)(x);
}

static inline real real_tanh(real x)
{
    return REAL_MATH(tanh)(x);
}

static inline real real_erf(real x)
{
    return REAL_MATH(erf)(x);
}

static inline real real_sqrt(real x)
{
    return REAL_MATH(sqrt)(x);
}

static inline real real_max(real a, real b)
{
    return a > b ? a : b;
}

static inline real real_min(real a, real b)
{
    return a < b ? a : b;
}

/* 1 / (1 + exp(-x)), without overflow on either side. */
static inline real real_sigmoid(real x)
{
    real e = real_exp(x < 0 ? x : -x);
    return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

/* log(1 + exp(x)), likewise. */
static inline real real_softplus(real x)
{
    return real_max(x, 0) + real_log1p(real_exp(x < 0 ? x : -x));
}

/* Elements of a tensor of this precision; NULL for NULL. */
static inline real *real_data(Tensor *tensor)
{
    return tensor != NULL ? tensor->data : NULL;
}

static inline const real *real_data_const(const Tensor *tensor)
{
    return tensor != NULL ? tensor->data : NULL;
}
