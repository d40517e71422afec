#include "workloads/run/trials.h"

#include "hw/host-link.h"
#include "sim/base/quantity.h"
#include "workloads/lower/tier-cache.h"

enum { STEP_OCTAVES = 4, FIT_ROUNDS = 8, LEAST_CHUNK = 256 };

/* Memory that is not worth another round. */
static const int64_t FIT_SLACK_BYTES = (int64_t)64 << 20;

typedef struct Trials {
    RunCache *cache;
    const Plan *plan;
    const RunOptions *options;
    GError **error;
    int64_t hbm_bytes; /* where the search for a budget that fits starts */
    Result *best;
    gboolean failed;
} Trials;

static gboolean chooses_ddr(const Plan *plan)
{
    return plan->has_cache && plan->cache_policy == CACHE_CHOICE && plan->cache_ddr_bytes > 0;
}

/* The largest step of DDR below that many bytes: powers of two and what lies halfway. */
static int64_t step_below(int64_t bytes)
{
    int64_t power = 1;
    while (power < bytes / 2 + bytes % 2) {
        power *= 2;
    }
    return power + power / 2 < bytes ? power + power / 2 : MIN(power, bytes - 1);
}

/* Budgets of DDR that a plan may use: the whole, the steps below it, and at last none. */
static GArray *ddr_steps(const Plan *plan)
{
    int64_t there = host_link_of(plan->cluster).bytes;
    int64_t most = there > 0 ? MIN(plan->cache_ddr_bytes, there) : plan->cache_ddr_bytes, none = 0;
    GArray *steps = g_array_new(FALSE, FALSE, sizeof(int64_t));
    for (int64_t bytes = most; chooses_ddr(plan) && bytes > most >> STEP_OCTAVES; bytes = step_below(bytes)) {
        g_array_append_val(steps, bytes);
    }
    g_array_append_val(steps, none);
    return steps;
}

/* A view of the plan with so much of its DDR budget. */
static Plan with_ddr(const Plan *plan, int64_t ddr_bytes)
{
    Plan view = *plan;
    view.owner = plan;
    view.cache_fits = view.seq_chunk_fits = FALSE;
    if (chooses_ddr(plan)) {
        view.cache_ddr_bytes = ddr_bytes;
    }
    return view;
}

Plan trials_settle(const Plan *plan, const Result *found)
{
    Plan view = with_ddr(plan, 0);
    view.cache_hbm_bytes = found->tiers->hbm_budget_bytes;
    view.cache_ddr_bytes = found->tiers->ddr_budget_bytes;
    view.seq_chunk = found->seq_chunk;
    return view;
}

static gboolean is_better(const Result *result, const Result *than)
{
    return than == NULL || (result->fits && !than->fits) || (result->fits == than->fits && result->step_time_s < than->step_time_s);
}

/* Runs a settled view; the best result is kept. Returns whether this one is it; *ret_left_bytes: of the device. */
static gboolean try(Trials *trials, const Plan *view, int64_t *ret_left_bytes)
{
    Result *result = trials->failed ? NULL : run_settled(trials->cache, view, trials->options, trials->error);
    if (result == NULL) {
        trials->failed = TRUE;
        return FALSE;
    }
    result->tiers->hbm_budget_bytes = view->has_cache ? view->cache_hbm_bytes : 0;
    result->tiers->ddr_budget_bytes = view->has_cache ? view->cache_ddr_bytes : 0;
    result->seq_chunk = view->seq_chunk;
    *ret_left_bytes = result->capacity_bytes - result->non_framework_bytes - result->peak_memory_bytes;
    gboolean better = is_better(result, trials->best);
    result_free(better ? trials->best : result);
    trials->best = better ? result : trials->best;
    return better;
}

/* The largest budget in HBM that fits, if that is open. Returns whether something better was found on the way. */
static gboolean try_fitting(Trials *trials, Plan *view)
{
    int64_t left = 0;
    if (!trials->plan->cache_fits) {
        return try(trials, view, &left);
    }
    gboolean better = FALSE;
    view->cache_hbm_bytes = trials->hbm_bytes;
    for (int i = 0; i < FIT_ROUNDS && !trials->failed; i++) {
        gboolean is_best = try(trials, view, &left);
        better = better || is_best;
        trials->hbm_bytes = is_best ? view->cache_hbm_bytes : trials->hbm_bytes;
        if ((left >= 0 && left < FIT_SLACK_BYTES) || (left < 0 && view->cache_hbm_bytes == 0)) {
            break;
        }
        view->cache_hbm_bytes = MAX(0, view->cache_hbm_bytes + left);
    }
    return better;
}

static void try_chunks(Trials *trials)
{
    const int64_t tokens = trials->plan->seq_len * trials->plan->micro_batch;
    g_autoptr(GArray) steps = ddr_steps(trials->plan);
    const int64_t most = g_array_index(steps, int64_t, 0);
    Plan view = with_ddr(trials->plan, most);
    (void)try_fitting(trials, &view);
    for (int64_t parts = 2; tokens / parts >= LEAST_CHUNK; parts *= 2) {
        view = with_ddr(trials->plan, most);
        view.seq_chunk = quantity_div_up(tokens, parts);
        (void)try_fitting(trials, &view);
    }
}

static void try_steps(Trials *trials)
{
    g_autoptr(GArray) steps = ddr_steps(trials->plan);
    for (guint i = trials->best != NULL ? 1 : 0; i < steps->len; i++) { /* chunks were tried with the whole */
        Plan view = with_ddr(trials->plan, g_array_index(steps, int64_t, i));
        view.seq_chunk = trials->best != NULL ? trials->best->seq_chunk : view.seq_chunk;
        (void)try_fitting(trials, &view);
    }
}

Result *run_plan_cached(RunCache *cache, const Plan *plan, const RunOptions *options, GError **error)
{
    Trials trials = {.cache = cache, .plan = plan, .options = options, .error = error};
    if (plan->seq_chunk_fits) {
        try_chunks(&trials);
    }
    try_steps(&trials);
    if (trials.failed) {
        result_free(trials.best);
        return NULL;
    }
    return trials.best;
}

gboolean trials_close(Plan *plan, GError **error)
{
    if (!plan_is_open(plan)) {
        return TRUE;
    }
    g_autoptr(Result) found = run_plan(plan, NULL, error);
    if (found == NULL) {
        return FALSE;
    }
    plan->cache_hbm_bytes = found->tiers->hbm_budget_bytes;
    plan->cache_ddr_bytes = found->tiers->ddr_budget_bytes;
    plan->seq_chunk = found->seq_chunk;
    plan->cache_fits = plan->seq_chunk_fits = FALSE;
    return TRUE;
}

size_t trials_n_bounds(const Plan *plan)
{
    g_autoptr(GArray) steps = ddr_steps(plan);
    return plan->cache_fits ? 1 : steps->len;
}

Plan trials_bound(const Plan *plan, size_t bound_idx)
{
    g_autoptr(GArray) steps = ddr_steps(plan);
    Plan view = with_ddr(plan, g_array_index(steps, int64_t, bound_idx));
    if (plan->cache_fits) { /* nothing runs again, and nothing is exchanged or gathered for it */
        view.recompute = PLAN_RECOMPUTE_NONE;
        view.has_cache = FALSE;
    }
    return view;
}
