/*
 * LayerNorm: y = w (x - mean) / sqrt(variance + eps) + b, over a row.
 */
#pragma once

#include "models/graph.h"

typedef struct LayernormAttr {
    double eps;
} LayernormAttr;

/* Adds the norm of the rows of x. Parameters: NAME.weight and NAME.bias [width]. Returns y. */
int layernorm_add(Graph *graph, const char *name, int x, double eps);
