/*
 * Parts of an operator: their names "<operator>.<part>" and the type of those that stay in high precision.
 */
#pragma once

#include <glib.h>

#include "models/graph.h"

typedef struct OpName {
    char text[GRAPH_NAME_MAX];
} OpName;

/* The joined name; longer ones are cut. */
static inline OpName op_name(const char *op, const char *part)
{
    OpName name;
    g_snprintf(name.text, sizeof name.text, "%s.%s", op, part);
    return name;
}

/* Type of scores, weights and losses: fp32 whatever the activations are, fp64 in a float64 graph. */
static inline Dtype op_wide_dtype(const Graph *graph)
{
    return graph->compute == DTYPE_FP64 ? DTYPE_FP64 : DTYPE_FP32;
}
