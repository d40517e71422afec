/*
 * Groups: the sampled expert-parallel groups of a run, each with tokens of its own.
 *
 * Every data-parallel replica of the experts draws its own routing, and the step waits for the slowest. A run samples some
 * groups, simulates side by side those that can decide (a group whose every duration and use of links another one reaches
 * cannot), and says how the busiest rank's load grows with the number of groups: by order statistics within the sample, by
 * an extreme-value fit beyond it.
 */
#pragma once

#include "workloads/lower/lower.h"
#include "workloads/run/ledger.h"

/* How something grows with the number of groups: the expected largest of n. */
typedef struct GroupGrowth {
    int64_t n;
    double rank_load_max_over_mean;
} GroupGrowth;

typedef struct RunGroups {
    struct RunCache *cache; /* or NULL: borrowed */
    const Plan *plan;
    const ModelGraph *graphs;
    int64_t n_all;       /* expert-parallel groups of the cluster */
    int64_t n_sampled;
    GPtrArray *routings; /* Routing of each sampled group; empty: every rank of every group has the same rows */
    GPtrArray *programs; /* Program in time of each group that is simulated, the slowest alone first */
} RunGroups;

/* Loads of the groups that a plan samples, as in RunGroups; NULL: they do not fit the plan. Caller unrefs. */
GPtrArray *run_groups_routings(struct RunCache *cache, const Plan *plan, GError **error);

/* Samples the groups of a plan and lowers their programs (through a cache, if not NULL). Fails on loads that do not fit the plan. */
gboolean run_groups_init(RunGroups *groups, struct RunCache *cache, const Plan *plan, const ModelGraph *graphs, GError **error);
/* The same with the programs of all sampled groups, also of those that cannot decide. */
gboolean run_groups_init_all(RunGroups *groups, struct RunCache *cache, const Plan *plan, const ModelGraph *graphs, GError **error);
/* The same with the first group alone: no step is shorter than its program's. */
gboolean run_groups_init_first(RunGroups *groups, struct RunCache *cache, const Plan *plan, const ModelGraph *graphs, GError **error);
void run_groups_clear(RunGroups *groups);

/*
 * Loads of the slowest sampled group, whose ranks reports show; NULL where all ranks have the same rows. ret_rank: its rank
 * that decides the time of the first MoE layer, in the cluster (0 without loads).
 */
const Routing *run_groups_slowest(const RunGroups *groups, int64_t *ret_rank);

/* The sampled group whose busiest rank has most, and its busiest table; statistics of that. Only with routings. */
const Routing *run_groups_busiest(const RunGroups *groups, RoutingStats *ret_stats);

/* Sums over all sampled groups and MoE layers. */
typedef struct GroupTotals {
    int64_t n_routed, n_kept, n_dropped, n_computed; /* computed: padding included */
} GroupTotals;
void run_groups_totals(const RunGroups *groups, GroupTotals *ret_totals);

/* Expected largest load of 1, 2, 4, … sampled groups, and of all of the cluster: GroupGrowth. Caller unrefs. */
GArray *run_groups_growth(const RunGroups *groups);

/* Memory of ranks. */
typedef struct GroupMemory {
    Ledger ledger;        /* of the rank that is reported */
    Program *program;     /* the ledger's place lies in it */
    gboolean owns_program; /* else it is one of the groups' */
    int64_t rank;         /* in the cluster */
    int64_t mean_peak_bytes; /* over ranks at even places of the order by load */
} GroupMemory;

/* The fullest rank of the sampled groups, or a given rank of the first one (rank >= 0). Clear frees the program. */
gboolean run_groups_memory(const RunGroups *groups, int64_t rank, GroupMemory *ret_memory, GError **error);
void group_memory_clear(GroupMemory *memory);
