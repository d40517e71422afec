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

/* The same into padded slots: as many for each expert, of which a router's `counts` are taken and the rest zero. */
int permute_add_padded(Graph *graph, const char *name, int x, int order, int counts);

/* Slot of each token * k + choice of an operator over a router's order, whose slots are padded if counts is given. */
int64_t *permute_slot_of(const Tensor *order, const Tensor *counts, int64_t slots);

/* The token of each slot, or -1: what the framework's index operators take. */
void permute_tokens(const int64_t *slot_of, int64_t n_choices, int64_t k, int64_t slots, int64_t *ret_token);

/* Adds a permute of x [TOKENS, l] by a router's `order`, or of x [ARRIVED, l] by a token dispatch's. Returns [SLOTS, l], or
 * [RECEIVED, l] (MEM_DISPATCH). */
int permute_add(Graph *graph, const char *name, int x, int order);
