/*
 * Expert bias: adds the bias vector of its expert to each row (gpt-oss).
 */
#pragma once

#include "models/op.h"

typedef struct ExpertBiasAttr {
    int64_t experts; /* of the model */
} ExpertBiasAttr;

/* Adds y = x + b[expert of the row] for x [RECEIVED, out]; parameter "<name>" [experts, out], PARAM_EXPERT. */
int expert_bias_add(Graph *graph, const char *name, int x, int64_t experts);
