/*
 * Draws of routing: popularities, whole tokens, and what one source sends when its tokens are drawn.
 *
 * A popularity is the expected share of tokens that take an expert (sum top_k, none above 1). Tokens of a sequence resemble
 * one another, so each sequence shifts all popularities a little; then every expert's tokens scatter as so many draws do.
 * What is drawn is made whole by largest remainders, so the tokens of a source over all experts are tokens x top_k exactly.
 */
#pragma once

#include "workloads/plan/routing.h"

/* Shares proportional to weights >= 0, sum `sum`, none above 1: what an expert cannot take goes to the others in proportion. */
void routing_shares(const double *weights, int64_t n, double sum, double *ret_share);

/* Whole tokens by largest remainder: ret_tokens[i] <= tokens, sum exactly n_slots; ties to the lower index. */
void routing_apportion(const double *share, int64_t n, int64_t tokens, int64_t n_slots, int64_t *ret_tokens);

/* Share of each expert in a table of layers: the popularity, dealt to the experts. ret_share[experts]. */
void routing_expert_shares(const RoutingSpec *spec, int table, const double *popularity, double *ret_share);

/* Tokens of one source, drawn around the experts' shares. ret_tokens[experts]. */
void routing_draw_source(const RoutingSpec *spec, int table, int64_t source, const double *share, int64_t *ret_tokens);
