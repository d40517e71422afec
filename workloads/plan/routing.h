/*
 * Routing: how many of its tokens each rank of an expert-parallel group sends to each expert, layer by layer.
 *
 * A popularity (the expected share of tokens that take an expert, by falling rank) is dealt to the experts in an order and
 * made whole tokens for each source rank, drawn or in expectation (routing-draw.h). Five kinds:
 *  - balanced: equal expectation, with the spread that random router weights show;
 *  - zipf: top k without replacement of log-score + Gumbel noise - exponent * log(rank);
 *  - measured: token counts from a file, scaled to the tokens of the plan;
 *  - router: the model's own router with random weights, run on a sample of tokens (router-load.h);
 *  - consecutive: experts are handed out in turn, as the gates of benchmarks do: even loads, and neighbours for a token.
 * What a rule of balancing leaves of it: balanced-load.h. Then capacities cut (models/moe-tables.h), and copies of an expert
 * share its rows (models/placement.h): the code that decides on virtual ranks decides here.
 *
 * Each data-parallel replica of the experts (an expert-parallel group) draws its own tokens: RoutingSpec.group.
 *
 * Invariants: the tokens of a source over all experts are tokens * top_k before a capacity, and kept + dropped after it; no
 * expert gets more than all tokens of a source; the rows of all chunks are those of the whole; equal inputs give equal loads; all groups have the same placement. Layers
 * with equal loads share one table (routing_table), so that they can be priced once.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdint.h>

#include "models/placement.h"
#include "workloads/plan/arrivals.h"
#include "workloads/plan/plan.h"

typedef struct Routing Routing;

/* What routing depends on. */
typedef struct RoutingSpec {
    PlanRouting kind;
    const Model *model;   /* router: whose router is run; else unused */
    double exponent;      /* of zipf */
    uint64_t seed;        /* of the shuffle, and of draws */
    gboolean sorted;      /* zipf: expert e has popularity rank e, no shuffle */
    const int64_t *order; /* expert of each popularity rank [experts], or NULL */
    const JsonDoc *loads; /* measured: [layer][expert] or [layer][source rank][expert], borrowed */
    gboolean exact;       /* measured: the counts are rows as they were kept, taken as they are */
    int64_t experts, top_k;
    int64_t n_ranks;          /* of the expert-parallel group */
    int64_t tokens;           /* of one source rank in one micro-batch */
    int64_t sequences;        /* of one source rank, at least 1: many in the group narrow the natural spread */
    int64_t n_layers;         /* MoE layers */
    int64_t layer_draws;      /* zipf, router, balanced: different tables, dealt to the layers in turn; 0 counts as 1 */
    int64_t sample_tokens;    /* router: tokens it is run on; 0 = a usual number */
    gboolean draws;           /* each source draws its tokens; else all have the expectation */
    int64_t group;            /* of the sampled expert-parallel groups */
    PlanBalance balance;
    int64_t balance_steps;
    double balance_rate;
    MoeCapacity capacity; /* factor 0: nothing is dropped */
    gboolean measured_capacity; /* fitted to the loads of the layer, within the factor */
    double drop_target;   /* of a fitted capacity; below 0 counts as 0 */
    MoeDrop drop;         /* what a capacity cuts; known to chunks alone */
    int64_t chunks;       /* of a source's tokens (routing-chunks.h); 0 counts as 1 */
    gboolean padded;      /* every slot computes exactly its capacity (without one: the largest count) */
    int64_t slots;        /* experts and copies; 0 counts as experts */
    PlanPlacement placement;
    int64_t nodes, router_groups; /* scale-up domains of the group, groups of experts that the router limits: for EPLB */
    ArrivalSpec arrival;      /* of tokens that travel once to each rank; top_k 0: none do */
    const int64_t *arrivals;  /* [table][chunk][source][dest]: these instead of what is expected, or NULL */
    const int64_t *chunk_tokens; /* [table][chunk][source][expert]: these, kept, instead of draws around the tokens of all; or NULL */
    const Routing *placed;    /* placements and capacities are this one's, layer by layer; or NULL = found from the loads */
    const double *popularity; /* [experts] of an earlier routing_popularity() of the same spec, or NULL */
    const double *shares;     /* router: [table][expert] of an earlier routing_router_shares() of the same spec, or NULL */
} RoutingSpec;

/* The spec of a plan, whose ranks hold tokens each in sequences. Valid while the plan lives. */
RoutingSpec routing_spec(const Plan *plan, int64_t tokens, int64_t sequences);

/* Whether loads of a plan can differ between ranks, or slots differ from experts: else NULL may stand for its routing. */
gboolean routing_is_needed(const Plan *plan);

/*
 * Expected share of the tokens that take the expert of each popularity rank, falling, sum top_k: ret_share[experts].
 * Not for measured and router loads.
 */
void routing_popularity(const RoutingSpec *spec, double *ret_share);

/* Number of tables of a spec, and the expected share of each expert in one: ret_share[experts]. Measured loads must fit. */
int routing_spec_tables(const RoutingSpec *spec);
void routing_table_shares(const RoutingSpec *spec, int table, double *ret_share);

/* The same of all tables of a router, which all groups share: [table][expert]; caller frees. */
double *routing_router_shares(const RoutingSpec *spec);

/* Tokens of an expert with that share, of so many drawn in so many sequences; draws of another window are others. */
double routing_scattered(const RoutingSpec *spec, int table, int window, int64_t expert, double share, double tokens,
                         double sequences);

/* Loads of a spec. Fails on measured loads that do not fit, with their place; those of a plan do. */
Routing *routing_new(const RoutingSpec *spec, GError **error);

/* Whether measured loads fit the spec; FALSE with the place of what does not. */
gboolean routing_check_measured(const RoutingSpec *spec, GError **error);
void routing_free(Routing *routing);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Routing, routing_free)

/* Tables: layers with the same loads have the same table, 0 <= table < n_tables. */
int routing_n_tables(const Routing *routing);
int routing_table(const Routing *routing, int64_t moe_layer);
int64_t routing_n_ranks(const Routing *routing);

/* Tokens of a source rank that go to an expert (kept under the capacity). */
int64_t routing_tokens(const Routing *routing, int table, int64_t source, int64_t expert);

/* What one rank sees of a table. */
typedef struct RoutingRows {
    const int64_t *local_expert_rows; /* [slots / n_ranks], borrowed: rows of each local slot over all sources, padding included */
    int64_t n_received;               /* their sum: rows[RECEIVED] */
    int64_t n_arrived;                /* tokens that a token dispatch brings: rows[ARRIVED] */
    int64_t n_sent;                   /* slots of this rank as a source, its own experts' included: rows[SLOTS] */
    int64_t capacity;                 /* of an expert, for one source; 0 = none */
    const Placement *placement;       /* or NULL: expert e is slot e */
} RoutingRows;

void routing_rows(const Routing *routing, int table, int64_t ep_rank, RoutingRows *ret_rows);

/*
 * Rows of a pass over one layer on a rank at ep_rank: of tokens, sequences and experts as the plan has them; those of a MoE
 * layer (the moe_layer-th; -1 = none) by its routing (NULL: even). Borrows from the routing.
 */
RowCounts routing_row_counts(const Plan *plan, const Routing *routing, int64_t moe_layer, int64_t ep_rank);

/*
 * The split matrix of a table's dispatch, [n_ranks * n_ranks]: rows that source sends to dest at source * n_ranks + dest,
 * padding included. Its combine moves the same rows back.
 */
const int64_t *routing_splits(const Routing *routing, int table);

/* Tokens that go from source to dest when each goes there once, [n_ranks * n_ranks] as the split matrix. */
const int64_t *routing_arrivals(const Routing *routing, int table);

/* The same of the tokens of a chunk, from 0; of all where there are no chunks. */
const int64_t *routing_chunk_splits(const Routing *routing, int table, int64_t chunk);
const int64_t *routing_chunk_arrivals(const Routing *routing, int table, int64_t chunk);
void routing_chunk_rows(const Routing *routing, int table, int64_t ep_rank, int64_t chunk, RoutingRows *ret_rows);

/* Rows that source sends to dest. */
int64_t routing_send_rows(const Routing *routing, int table, int64_t source, int64_t dest);

/*
 * Expected number of different parts that a token's kept choices lie in, when the group's ranks are cut into n_parts equal
 * runs: n_parts = n_ranks for ranks, fewer for nodes. Exact for even loads (moe_expected_ranks).
 */
double routing_distinct_parts(const Routing *routing, int table, int64_t n_parts);

/* Statistics of a table. */
typedef struct RoutingStats {
    double expert_max_over_mean; /* kept rows of the busiest expert */
    double rank_max_over_mean;   /* rows that the busiest rank computes, padding included */
    double rank_mean_rows;
    double dropped_frac;         /* of the slots that were routed */
    double padding_frac;         /* of the rows that are computed */
    int64_t n_routed, n_kept, n_dropped;
    int64_t busiest_rank, busiest_rows;
} RoutingStats;

void routing_stats(const Routing *routing, int table, RoutingStats *ret_stats);

/*
 * Shuffle of 0 … n - 1: a Fisher-Yates walk on MT19937, the numbers that torch.randperm(n) gives under a generator
 * with that manual seed, so that a plan can name the permutation of a training script. (Seed 0 is taken as 4357.)
 */
void routing_shuffle(int64_t n, uint64_t seed, int64_t *ret_perm);
