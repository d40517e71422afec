/*
 * Checks: what is claimed of operators, computed a second way.
 *
 * For one sample of an operator: gradients against central differences in float64; FLOPs and bytes that its kernels
 * counted against the fused cost formula, in full training, with frozen weights and with inputs that need no gradient;
 * float32 against float64. Every check works on the graph that the class itself builds, so a new operator is covered on
 * its first day.
 */
#pragma once

#include <glib.h>

#include "models/op.h"

/* Largest errors that pass, relative to the largest number of a tensor. */
#define CHECK_DIFFERENCE_BOUND 1e-6
#define CHECK_FLOAT32_BOUND    1e-4

/* What one sample showed. Errors are relative to the largest number of the tensor. */
typedef struct CheckReport {
    double finite_difference; /* worst gradient error */
    double float32;           /* worst value or gradient error of float32 */
    double flops;             /* counted, forward and backward of full training */
    int64_t bytes;
    int64_t n_derivatives; /* entries that were compared with differences */
} CheckReport;

/* Samples that a class has. */
int check_op_n_samples(OpKind kind);

/* What a class lacks ("no value kernels"), or NULL when it is complete or documented to lack it. */
const char *check_op_missing(OpKind kind);

/*
 * Nothing is kept in vain: every real tensor that operators of this kind keep is read by their backward in at least one
 * sample. (That enough is kept shows in the gradients: backward sees nothing else.)
 */
gboolean check_op_kept(OpKind kind, GError **error);

/* Runs all checks of one sample; FALSE and MOESIM_ERROR_FAILED with the first that fails. */
gboolean check_op_sample(OpKind kind, int sample, CheckReport *ret_report, GError **error);
