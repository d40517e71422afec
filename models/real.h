/*
 * One source, two precisions. Every file of models/ops is compiled twice: once with `real` = double, which
 * also holds the cost, the class and the samples, and once with MOESIM_REAL_F32 and `real` = float, which
 * holds the value kernels alone. REAL_NAME(x) is the symbol of this precision: x_f64 or x_f32.
 *
 *     gboolean REAL_NAME(rmsnorm_forward)(const OpRun *run, GError **error) { … real … }
 *     #if REAL_HAS_CLASS
 *     … cost, saved, samples …
 *     const OpClass op_rmsnorm = { …, .forward = REAL_KERNELS(rmsnorm_forward), … };
 *     #endif
 *
 * with, in the file's own header or above the class, REAL_DECLARE(rmsnorm_forward).
 */
#pragma once

#ifdef MOESIM_REAL_F32
typedef float real;
#define REAL_NAME(name) name##_f32
#define REAL_HAS_CLASS 0
#define REAL_TENSOR TENSOR_F32
#else
typedef double real;
#define REAL_NAME(name) name##_f64
#define REAL_HAS_CLASS 1
#define REAL_TENSOR TENSOR_F64
#endif

#define REAL_DECLARE(name)                                                                        \
    gboolean name##_f64(const OpRun *run, GError **error);                                        \
    gboolean name##_f32(const OpRun *run, GError **error)
#define REAL_KERNELS(name) { name##_f64, name##_f32 }
