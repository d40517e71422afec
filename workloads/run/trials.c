#include "workloads/run/trials.h"

#include <math.h>

#include "hw/host-link.h"
#include "sim/base/quantity.h"
#include "workloads/lower/tier-cache.h"
#include "workloads/run/budget-trials.h"
#include "workloads/run/cache-needs.h"

enum { FIT_ROUNDS = 8, LEAST_CHUNK = 256 };

/* Memory that is not worth another round. */
static const int64_t FIT_SLACK_BYTES = (int64_t)64 << 20;

/* The fastest view so far of those that fit; of several that do not, the first. */
typedef struct Trials {
    RunCache *cache;
    const Plan *plan;
    Plan best;
    double best_s; /* HUGE_VAL: none fits yet */
    gboolean is_first;
} Trials;

static gboolean chooses(const Plan *plan)
{
    return plan->has_cache && plan->cache_policy == CACHE_CHOICE;
}

gboolean trials_are_needed(const Plan *plan)
{
    return plan_is_open(plan) || chooses(plan);
}

/* The plan with nothing left open. */
static Plan closed(const Plan *plan)
{
    Plan view = *plan;
    view.owner = plan;
    view.cache_fits = view.seq_chunk_fits = FALSE;
    return view;
}

Plan trials_settle(const Plan *plan, const Result *found)
{
    Plan view = closed(plan);
    view.cache_hbm_bytes = found->tiers->hbm_tried_bytes;
    view.cache_ddr_bytes = found->tiers->ddr_tried_bytes;
    view.seq_chunk = found->seq_chunk;
    return view;
}

static void note(Trials *trials, const Plan *view, gboolean fits, double step_s)
{
    if (trials->is_first || (fits && step_s < trials->best_s)) {
        trials->best = *view;
        trials->best_s = fits ? step_s : trials->best_s;
        trials->is_first = FALSE;
    }
}

/* Runs a view. *ret_left_bytes: of the device. */
static gboolean try(Trials *trials, const Plan *view, int64_t *ret_left_bytes, GError **error)
{
    g_autoptr(Result) result = run_settled(trials->cache, view, NULL, error);
    if (result == NULL) {
        return FALSE;
    }
    *ret_left_bytes = result->capacity_bytes - result->non_framework_bytes - result->peak_memory_bytes;
    note(trials, view, result->fits, result->step_time_s);
    return TRUE;
}

/* The largest budget in HBM with which a policy's cache fits: a budget b has a peak p(b) that grows by no more than b does. */
static gboolean try_fitting(Trials *trials, Plan *view, GError **error)
{
    int64_t left = G_MAXINT64;
    view->cache_hbm_bytes = 0;
    for (int i = 0; i < FIT_ROUNDS && (left < 0 || left >= FIT_SLACK_BYTES); i++) {
        if (!try(trials, view, &left, error)) {
            return FALSE;
        }
        if (left < 0 && view->cache_hbm_bytes == 0) {
            break;
        }
        view->cache_hbm_bytes = MAX(0, view->cache_hbm_bytes + left);
    }
    return TRUE;
}

/* Everything with a chunk of the loss. budgets: of a cache that chooses, or NULL. */
static gboolean try_chunk(Trials *trials, BudgetTrials *budgets, int64_t seq_chunk, GError **error)
{
    Plan view = closed(trials->plan);
    int64_t left;
    view.seq_chunk = seq_chunk;
    if (budgets == NULL) {
        return trials->plan->cache_fits ? try_fitting(trials, &view, error) : try(trials, &view, &left, error);
    }
    gboolean found;
    double step_s = trials->best_s;
    if (!budget_trials_find(budgets, seq_chunk, &step_s, &view, &found, error)) {
        return FALSE;
    }
    note(trials, &view, found, step_s);
    return TRUE;
}

static gboolean try_all(Trials *trials, BudgetTrials *budgets, GError **error)
{
    const int64_t tokens = trials->plan->seq_len * trials->plan->micro_batch;
    gboolean fits = trials->plan->seq_chunk_fits;
    gboolean ok = try_chunk(trials, budgets, fits ? 0 : trials->plan->seq_chunk, error);
    for (int64_t parts = 2; ok && fits && tokens / parts >= LEAST_CHUNK; parts *= 2) {
        ok = try_chunk(trials, budgets, quantity_div_up(tokens, parts), error);
    }
    return ok;
}

static void warn(Result *result, const char *format, ...) G_GNUC_PRINTF(2, 3);
static void warn(Result *result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_ptr_array_add(result->warnings, g_strdup_vprintf(format, args));
    va_end(args);
}

/* Policies fill budgets at even loads, so that all ranks decide alike: a rank that gets more rows keeps more. The choice knows. */
static void warn_played(const char *field, int64_t budget, int64_t held, Result *result)
{
    if (held > budget) {
        g_autofree char *given = quantity_format_bytes(budget), *most = quantity_format_bytes(held);
        warn(result, "%s %s is what a policy fills at even loads: the rank with the most rows holds %s", field, given, most);
    }
}

/* What the budgets come to, and a word where that is more than was given, or the host has less. */
static gboolean tell_budgets(Trials *trials, Result *result, GError **error)
{
    ResultTiers *tiers = result->tiers;
    const Plan *view = &trials->best, *plan = trials->plan;
    int64_t host = host_link_of(plan->cluster, plan->copies_yield).bytes;
    result->seq_chunk = view->seq_chunk;
    if (!view->has_cache) {
        return TRUE;
    }
    tiers->hbm_tried_bytes = view->cache_hbm_bytes;
    tiers->ddr_tried_bytes = view->cache_ddr_bytes;
    if (!cache_held(trials->cache, view, &tiers->hbm_held_bytes, &tiers->ddr_held_bytes, error)) {
        return FALSE;
    }
    int64_t found = chooses(plan) ? tiers->hbm_held_bytes : view->cache_hbm_bytes;
    tiers->hbm_budget_bytes = plan->cache_fits ? found : plan->cache_hbm_bytes;
    tiers->ddr_budget_bytes = plan->cache_ddr_bytes;
    if (!chooses(plan)) { /* whose entries come and go: more may have been there before the end of the forward pass */
        tiers->ddr_held_bytes = MAX(tiers->ddr_held_bytes, plan->optimizer_offload ? 0 : tiers->host_peak_bytes);
        warn_played("memory.cache.hbm_bytes", view->cache_hbm_bytes, tiers->hbm_held_bytes, result);
        warn_played("memory.cache.ddr_bytes", view->cache_ddr_bytes, tiers->ddr_held_bytes, result);
    } else if (host > 0 && plan->cache_ddr_bytes > host) {
        g_autofree char *given = quantity_format_bytes(plan->cache_ddr_bytes), *there = quantity_format_bytes(host);
        warn(result, "memory.cache.ddr_bytes %s is more than the %s of host memory per GPU that %s has: no more than that is used", given,
             there, plan->cluster->device->name);
    }
    return TRUE;
}

Result *run_plan_cached(RunCache *cache, const Plan *plan, const RunOptions *options, GError **error)
{
    Trials trials = {.cache = cache, .plan = plan, .best_s = HUGE_VAL, .is_first = TRUE};
    g_autoptr(BudgetTrials) budgets = NULL;
    trials.best = closed(plan);
    if (trials_are_needed(plan)) {
        budgets = chooses(plan) ? budget_trials_new(cache, plan, error) : NULL;
        if ((chooses(plan) && budgets == NULL) || !try_all(&trials, budgets, error)) {
            return NULL;
        }
    }
    Result *result = run_settled(cache, &trials.best, options, error);
    if (result != NULL && !tell_budgets(&trials, result, error)) {
        g_clear_pointer(&result, result_free);
    }
    return result;
}

gboolean trials_close(Plan *plan, GError **error)
{
    if (!trials_are_needed(plan)) {
        return TRUE;
    }
    g_autoptr(Result) found = run_plan(plan, NULL, error);
    if (found == NULL) {
        return FALSE;
    }
    plan->cache_hbm_bytes = found->tiers->hbm_tried_bytes;
    plan->cache_ddr_bytes = found->tiers->ddr_tried_bytes;
    plan->seq_chunk = found->seq_chunk;
    plan->cache_fits = plan->seq_chunk_fits = FALSE;
    return TRUE;
}

Plan trials_recomputing(const Plan *plan, PlanRecompute recompute)
{
    Plan view = closed(plan);
    view.recompute = recompute;
    view.has_cache = FALSE;
    view.offload_fraction = 0;
    return view;
}

Plan trials_bound(const Plan *plan)
{
    /* nothing runs again, and nothing is exchanged or gathered for it */
    return plan->cache_fits || chooses(plan) ? trials_recomputing(plan, PLAN_RECOMPUTE_NONE) : closed(plan);
}
