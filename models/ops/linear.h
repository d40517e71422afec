/*
 * Linear layer: y = x Wt (+ b).
 */
#pragma once

#include "models/graph.h"

/*
 * Adds a linear layer over the rows of x. Parameters: NAME.weight [out_width, in_width] (PARAM_MATRIX; the caller
 * may change it through graph_param()) and, if asked for, NAME.bias [out_width]. Returns y.
 */
int linear_add(Graph *graph, const char *name, int x, int64_t out_width, gboolean bias);
