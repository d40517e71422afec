/*
 * Sum of two tensors: the residual connection, and the contribution of a LoRA adapter.
 */
#pragma once

#include "models/graph.h"

typedef struct ResidualAddAttr {
    double scale; /* of the second one */
} ResidualAddAttr;

/*
 * Adds x + scale y; both have the same shape. Returns the sum. With scale 1 the gradient of the sum is that of
 * both terms: backward moves nothing.
 */
int residual_add(Graph *graph, const char *name, int x, int y, double scale);
