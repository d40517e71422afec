/*
 * AttnRes mix: softmax attention of a learned query over residual sources, token by token. Keys are the
 * RMS-normed sources, values the sources themselves.
 */
#pragma once

#include "models/graph.h"

enum { ATTNRES_SOURCES_MAX = OP_INPUTS_MAX };

typedef struct AttnresAttr {
    double eps;
} AttnresAttr;

/*
 * Adds the mix of n sources ([TOKENS, h] each, 1 <= n <= ATTNRES_SOURCES_MAX). Parameters: the query PROJ.weight
 * [1, h] and the key norm NORM.weight [h]. Returns y: [TOKENS, h].
 */
int attnres_add(Graph *graph, const char *proj, const char *norm, const int *sources, int n, double eps);
