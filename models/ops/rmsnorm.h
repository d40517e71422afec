/*
 * RMSNorm: y = w x / sqrt(mean(x^2) + eps), over a row or over equal parts of it (heads).
 */
#pragma once

#include "models/graph.h"

typedef struct RmsnormAttr {
    int64_t width; /* of what is normalised; the width of x is a multiple */
    double eps;
    gboolean zero_centered; /* 1 + w stands for w */
} RmsnormAttr;

/*
 * Adds the norm of x, part by part. Parameter: NAME.weight [width], shared by the parts. Returns y.
 */
int rmsnorm_add(Graph *graph, const char *name, int x, int64_t width, double eps, gboolean zero_centered);
