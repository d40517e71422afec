/*
 * L2 norm: y = x / sqrt(sum(x^2) + eps), over equal parts of a row (heads).
 */
#pragma once

#include "models/graph.h"

typedef struct L2normAttr {
    int64_t width; /* of a part; the width of x is a multiple */
    double eps;
} L2normAttr;

/* Adds the norm of x, part by part. Returns y. */
int l2norm_add(Graph *graph, const char *name, int x, int64_t width, double eps);
