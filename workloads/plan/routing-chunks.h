/*
 * Routing by chunk: which of the tokens that a source sends to each expert lie in which chunk of its tokens.
 *
 * A chunk is a run of consecutive tokens (models/graph.h). Which of its experts' tokens it holds is a draw without replacement
 * from those of the source; drawn around its expectation and made whole by largest remainders, so that every chunk's tokens have
 * all their choices and every expert's tokens over the chunks are those of the source. So a chunk is less even than the whole, by
 * what fewer tokens scatter.
 *
 * Capacities hold for all chunks together (the router has seen all tokens). What is dropped by position comes off the last
 * chunks, what is dropped by weight or by order of choice off all alike.
 */
#pragma once

#include "workloads/plan/routing.h"

/*
 * routed[experts]: a source's tokens for each expert before its capacity (0 = none; the table's, from the spec's table of that
 * number). ret_kept[chunks][experts]: what is kept of them in each chunk; over the chunks min(routed, capacity).
 */
void routing_cut_source(const RoutingSpec *spec, int table, int64_t source, const int64_t *routed, int64_t capacity, int64_t *ret_kept);
