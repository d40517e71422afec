/*
 * Gated head RMSNorm: RMSNorm of every head by itself, times a function of a gate.
 */
#pragma once

#include "models/graph.h"

typedef enum GatedNormKind {
    GATED_NORM_SIGMOID, /* KDA */
    GATED_NORM_SILU,    /* GDN */
} GatedNormKind;

typedef struct GatedNormAttr {
    int64_t dim; /* of a head; the width is a multiple */
    GatedNormKind kind;
    double eps;
} GatedNormAttr;

/*
 * Adds y = w x / rms(x) f(gate), head by head of size dim; x and gate have the same shape. Parameter: NAME.weight
 * [dim], shared by the heads. Returns y.
 */
int gated_norm_add(Graph *graph, const char *name, int x, int gate, int64_t dim, GatedNormKind kind, double eps);
