/*
 * Expert pass: permute, grouped GEMM and unpermute as one, y[t] = sum over kept choices (t, j) of w[t, j] We x[t].
 *
 * The fused form of that chain, for experts of one rank: tiles of an expert's slots are gathered, multiplied and added
 * to their tokens; the permuted rows and the experts' outputs, [SLOTS, in] and [SLOTS, out], never exist as a whole.
 * Backward makes U = dy[token] We of a tile and from it dx[token] += w U and dw = U . x[token]; then dWe += (w dy)t x.
 * A token's experts are added in rising expert here, in rising choice there: the results agree up to the order of sums.
 */
#pragma once

#include "models/op.h"

typedef struct ExpertPassAttr {
    int64_t experts; /* all of them local */
    int64_t top_k;
} ExpertPassAttr;

/*
 * Adds the pass over x [TOKENS, in] with a router's `weights` and `order`. The parameter "<name>.weight" is
 * [experts, out, in]. Returns [TOKENS, out]. Not for expert-parallel graphs.
 */
int expert_pass_add(Graph *graph, const char *name, int x, int weights, int order, int64_t out, int64_t experts);
