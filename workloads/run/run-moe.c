#include "workloads/run/run-moe.h"

#include <math.h>
#include <string.h>

#include "workloads/run/replacement.h"
#include "workloads/run/run-cache.h"

/* Every rank has the same rows in expectation; single experts spread as random router weights make them. */
static void fill_even(const RunGroups *groups, Result *result)
{
    const Plan *plan = groups->plan;
    RoutingSpec spec = routing_spec(plan, plan->seq_len * plan->micro_batch, plan->micro_batch);
    RunCache *cache = groups->cache;
    spec.draws = FALSE; /* the spread of one draw, in expectation */
    spec.model = NULL;  /* no router is run */
    result->rank_load_max_over_mean = 1;
    if (cache != NULL && cache->even_load > 0 && memcmp(&cache->even_spec, &spec, sizeof spec) == 0) {
        result->expert_load_max_over_mean = cache->even_load;
        return;
    }
    g_autofree double *share = g_new(double, spec.experts);
    routing_popularity(&spec, share);
    result->expert_load_max_over_mean = share[0] * (double)spec.experts / (double)spec.top_k;
    if (cache != NULL && spec.kind == PLAN_ROUTING_BALANCED) { /* which points at nothing */
        memcpy(&cache->even_spec, &spec, sizeof spec);
        cache->even_load = result->expert_load_max_over_mean;
    }
}

static void fill_loads(const RunGroups *groups, Result *result)
{
    GroupTotals totals;
    RoutingStats busiest;
    run_groups_busiest(groups, &busiest);
    run_groups_totals(groups, &totals);
    result->busiest_rank = busiest.busiest_rank;
    for (guint g = 0; g < groups->routings->len; g++) {
        const Routing *routing = g_ptr_array_index(groups->routings, g);
        for (int t = 0; t < routing_n_tables(routing); t++) {
            RoutingStats stats;
            RoutingRows rows;
            routing_stats(routing, t, &stats);
            routing_rows(routing, t, 0, &rows);
            result->expert_load_max_over_mean = fmax(result->expert_load_max_over_mean, stats.expert_max_over_mean);
            result->rank_load_max_over_mean = fmax(result->rank_load_max_over_mean, stats.rank_max_over_mean);
            result->expert_capacity = MAX(result->expert_capacity, rows.capacity);
        }
    }
    if (totals.n_routed > 0) {
        result->dropped_fraction = (double)totals.n_dropped / (double)totals.n_routed;
    }
    if (totals.n_computed > 0) {
        result->padding_fraction = 1 - (double)totals.n_kept / (double)totals.n_computed;
    }
}

static void fill_groups(const RunGroups *groups, Result *result)
{
    g_autoptr(GArray) growth = run_groups_growth(groups);
    result->groups_sampled = groups->routings->len;
    result->groups_simulated = groups->programs->len;
    for (guint i = 0; i < growth->len; i++) {
        const GroupGrowth *entry = &g_array_index(growth, GroupGrowth, i);
        ResultGrowth row = {entry->n, entry->rank_load_max_over_mean};
        g_array_append_val(result->group_growth, row);
    }
}

void run_moe_fill(const RunGroups *groups, Result *result)
{
    const Plan *plan = groups->plan;
    if (plan->model->n_experts == 0) {
        result->expert_load_max_over_mean = result->rank_load_max_over_mean = NAN;
        return;
    }
    result->expert_load_max_over_mean = result->rank_load_max_over_mean = 1;
    result->groups_in_all = groups->n_all;
    if (groups->routings->len == 0) {
        fill_even(groups, result);
        return;
    }
    fill_loads(groups, result);
    fill_groups(groups, result);
    if (plan->moe.replace_every > 0) {
        Replacement moved;
        replacement_estimate(plan, groups->graphs, &moved);
        result->replacement_moved_experts = moved.n_moved;
        result->replacement_bytes_per_rank = moved.bytes_per_rank;
        result->replacement_s = (double)moved.move_ns * 1e-9;
        result->replacement_s_per_step = result->replacement_s / (double)plan->moe.replace_every;
        result->replacement_load_before = moved.load_before;
        result->replacement_load_after = moved.load_after;
    }
}
