/*
 * Spread: over how many parts of the machine a token's experts are spread.
 *
 * A dispatch that sends a row once to each rank, or once to each node, moves as many rows as a token's experts lie in
 * different ones. With group-limited routing a token's experts come from a few groups of neighbours, which makes them
 * fewer. Gates of benchmarks that hand out experts in turn make them fewest.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

/* Experts of a model and how a token chooses among them; all choices alike. */
typedef struct MoeSpread {
    int64_t experts, top_k;
    int64_t groups, topk_groups; /* of equal size, neighbours; 0 or 1 groups: no limit */
    gboolean consecutive;        /* each token takes the experts behind those of the token before it; groups are not asked */
} MoeSpread;

/*
 * Expected number of the n_parts equal runs of experts in which a token has at least one of its experts. groups and
 * parts divide experts, and one of them the other.
 */
double moe_spread_parts(const MoeSpread *spread, int64_t n_parts);
