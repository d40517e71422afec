/*
 * Token combine: sends the weighted sums that a rank has made for a token back to the token's rank, which adds up those of
 * all ranks; the inverse of token dispatch.
 *
 * Time: the exchange adds up while it receives, so the class prices nothing. Values: the kernel hands on [ARRIVED, l], the
 * exchange that follows, and its sum by token, are the caller's, who in backward hands in dout as it came back, a row for
 * every rank that had the token.
 */
#pragma once

#include "models/op.h"

typedef struct TokenCombineAttr {
    int64_t ep_size;
    gboolean from_all; /* every rank has a sum for every token */
} TokenCombineAttr;

/* Adds a token combine of y [ARRIVED, l]. Returns [TOKENS, l]. graph->ep_size > 1. */
int token_combine_add(Graph *graph, const char *name, int y, gboolean from_all);
