/*
 * Samples of operators, run: what the checks of operators share.
 */
#pragma once

#include "models/execute.h"

/* How a sample is run: as fused kernels, then all operators as chains of framework operators. */
typedef enum Variant {
    VARIANT_FULL,
    VARIANT_FROZEN,
    VARIANT_NO_INPUT_GRAD,
    VARIANT_CHAIN,
    VARIANT_CHAIN_FROZEN,
    VARIANT_CHAIN_NO_INPUT_GRAD,
    N_VARIANTS
} Variant;

gboolean check_is_chain(Variant variant);

/* A sample with its values. */
typedef struct Sample {
    const OpClass *class;
    int idx;
    Graph *graph;
    RowCounts rows;
    Tensor **values; /* by tensor: of the graph's inputs */
    Tensor **params; /* by parameter */
    Tensor **seeds;  /* by tensor: upstream gradient of the graph's outputs */
} Sample;

/* The graph of a sample, float64, or FALSE past the last. */
gboolean check_sample_build(const OpClass *cls, int idx, Graph **ret_graph, RowCounts *ret_rows);

/* A sample with its values, ready to run in that variant; FALSE past the last. Clear it. */
gboolean check_sample_init(Sample *s, OpKind kind, int idx, Variant variant);
void check_sample_clear(Sample *s);

/* A run with the sample's values put in; and the upstream gradients of its outputs. */
Execution *check_sample_run(const Sample *s);
void check_sample_seed(const Sample *s, Execution *run);

/* An error that names the sample; FALSE. */
gboolean check_sample_fail(const Sample *s, const char *what, GError **error);

/* Whether a tensor of that type holds integers in value runs. */
gboolean check_is_integer(Dtype dtype);
