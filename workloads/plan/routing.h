/*
 * Routing: how many of its tokens each rank of an expert-parallel group sends to each expert, layer by layer.
 *
 * A popularity (the expected share of tokens that take an expert, by falling rank) is apportioned to whole tokens for
 * each source rank, dealt to the experts in an order, and cut at the capacity. Three popularities:
 *  - balanced: equal expectation, with the spread that random router weights show;
 *  - zipf: top k without replacement of log-score + Gumbel noise - exponent * log(rank);
 *  - measured: token counts from a file, scaled to the tokens of the plan.
 *
 * Invariants: the tokens of a source over all experts are tokens * top_k (before a capacity); no expert gets more than
 * all tokens of a source; equal inputs give equal loads. Layers with equal loads share one table (routing_table), so
 * that they can be priced once.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdint.h>

#include "workloads/plan/plan.h"

/* What routing depends on. */
typedef struct RoutingSpec {
    PlanRouting kind;     /* PLAN_ROUTING_ROUTER is taken as balanced: the real router exists in values alone */
    double exponent;      /* of zipf */
    uint64_t seed;        /* of the shuffle */
    gboolean sorted;      /* zipf: expert e has popularity rank e, no shuffle */
    const int64_t *order; /* expert of each popularity rank [experts], or NULL */
    json_t *loads;        /* measured: [layer][expert] or [layer][source rank][expert], borrowed */
    int64_t experts, top_k;
    int64_t n_ranks;          /* of the expert-parallel group */
    int64_t tokens;           /* of one source rank in one micro-batch */
    int64_t sequences;        /* of one source rank, at least 1: many in the group narrow the natural spread */
    int64_t n_layers;         /* MoE layers */
    int64_t capacity;         /* rows of one source that an expert takes; 0 = dropless */
    const double *popularity; /* [experts] of an earlier routing_popularity() of the same spec, or NULL */
} RoutingSpec;

typedef struct Routing Routing;

/* The spec of a plan, whose ranks hold tokens each in sequences. Valid while the plan lives. */
RoutingSpec routing_spec(const Plan *plan, int64_t tokens, int64_t sequences);

/*
 * Expected share of the tokens that take the expert of each popularity rank, falling, sum top_k: ret_share[experts].
 * Not for measured loads.
 */
void routing_popularity(const RoutingSpec *spec, double *ret_share);

/* Loads of a spec. Fails on measured loads whose shape does not fit (place is "FILE: path" for the message, or NULL).
 */
Routing *routing_new(const RoutingSpec *spec, const char *place, GError **error);
void routing_free(Routing *routing);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Routing, routing_free)

/* Tables: layers with the same loads have the same table, 0 <= table < n_tables. */
int routing_n_tables(const Routing *routing);
int routing_table(const Routing *routing, int64_t moe_layer);

/* Tokens of a source rank that go to an expert (kept under the capacity). */
int64_t routing_tokens(const Routing *routing, int table, int64_t source, int64_t expert);

/* What one rank sees of a table. */
typedef struct RoutingRows {
    const int64_t *local_expert_rows; /* [experts / n_ranks], borrowed: rows of each local expert over all sources */
    int64_t n_received;               /* their sum: rows[RECEIVED] */
    int64_t n_sent;                   /* slots of this rank as a source, its own experts' included: rows[SLOTS] */
} RoutingRows;

void routing_rows(const Routing *routing, int table, int64_t ep_rank, RoutingRows *ret_rows);

/* Rows that source sends to dest. */
int64_t routing_send_rows(const Routing *routing, int table, int64_t source, int64_t dest);

/* Statistics of a table: busiest expert and busiest rank over their means, share of slots that a capacity drops. */
typedef struct RoutingStats {
    double expert_max_over_mean;
    double rank_max_over_mean;
    double dropped_frac;
    int64_t busiest_rank;
} RoutingStats;

void routing_stats(const Routing *routing, int table, RoutingStats *ret_stats);

/*
 * Shuffle of 0 … n - 1: a Fisher-Yates walk on MT19937, the numbers that torch.randperm(n) gives under a generator
 * with that manual seed, so that a plan can name the permutation of a training script. (Seed 0 is taken as 4357.)
 */
void routing_shuffle(int64_t n, uint64_t seed, int64_t *ret_perm);
