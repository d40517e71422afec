/*
 * Permute: copies each token's row to its slots, which stand by (expert, token, choice).
 *
 * Forward gathers rows; backward sums the slots of a token in ascending order of choice.
 */
#pragma once

#include "models/op.h"

typedef struct PermuteAttr {
    int64_t top_k;
} PermuteAttr;

/* Adds a permute of x [TOKENS, l] by a router's `order`. Returns [SLOTS, l] (MEM_DISPATCH). */
int permute_add(Graph *graph, const char *name, int x, int order);
