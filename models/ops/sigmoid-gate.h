/*
 * Sigmoid gate: y = x sigmoid(gate).
 */
#pragma once

#include "models/graph.h"

/*
 * Adds the gating of x; the gate's width divides that of x, each gate value serving a run of equal length: as wide as
 * x, one per head, or one per row. Returns y.
 */
int sigmoid_gate_add(Graph *graph, const char *name, int x, int gate);
