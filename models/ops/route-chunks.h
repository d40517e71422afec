/*
 * Routes by chunk: a router's slots, chunk of tokens by chunk of tokens (token-split.h), so that each chunk's rows can travel and
 * be computed while others do.
 *
 * The router has seen all tokens: what is dropped, and which copy of an expert a row goes to, does not depend on the chunks. A
 * chunk's slots stand by (expert, token, choice) as the router's do, and the chunks' counts add up to the router's.
 */
#pragma once

#include "models/op.h"

/*
 * Adds, for n chunks, from a router's `order` [TOKENS, k] and `counts` [EXPERTS, 1] the same of each chunk: ret_order[n]
 * [tokens of the chunk, k], whose tokens are counted from the chunk's first, and ret_counts[n] [EXPERTS, 1]. Slots must not be
 * padded.
 */
void route_chunks_add(Graph *graph, const char *name, int order, int counts, int n, int *ret_order, int *ret_counts);
