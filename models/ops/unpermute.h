/*
 * Unpermute: the weighted sum of a token's slots, y[t] = sum_j w[t, j] yp[slot of (t, j)], in ascending choice.
 *
 * Dropped choices have no slot and add nothing. Accumulation is in fp32 when fused.
 */
#pragma once

#include "models/op.h"

typedef struct UnpermuteAttr {
    int64_t top_k;
} UnpermuteAttr;

/*
 * Adds an unpermute of yp [SLOTS, l] ([RECEIVED, l] without expert parallelism, where both spaces have the same
 * rows) by a router's `weights` and `order`. Returns [TOKENS, l].
 */
int unpermute_add(Graph *graph, const char *name, int yp, int weights, int order);

/* The same from padded slots (permute_add_padded). */
int unpermute_add_padded(Graph *graph, const char *name, int yp, int weights, int order, int counts);
