/*
 * Budget trials: candidates of what a cache keeps, tried by running them.
 *
 * A candidate is what the choice (lower/cache-choice.h) makes of two budgets at even loads. These come from a grid that depends on
 * the plan, but not on the plan's own budgets: up to everything worth keeping or what the device has in HBM, up to what the link can
 * carry or the host holds in DDR, finer where they are small (squares). budget-search.h finds the one that the plan's budgets admit, so that more
 * budget is never slower. A budget is what the rank that holds most may hold (cache-needs.h), and a candidate that does not fit
 * the device or the host is none: a budget beyond what there is takes what there is, and "fit" is a budget without bound.
 *
 * Two neighbours on the grid are at most a 256th of that apart in HBM and a 24th in DDR (drawn loads, whose trials cost more: a
 * 64th and a 12th), less where budgets are small: that much of a budget can be left unused.
 */
#pragma once

#include "workloads/run/run.h"

typedef struct BudgetTrials BudgetTrials;

/* Of a plan whose cache chooses; everything is borrowed. NULL: its loads do not fit it. */
BudgetTrials *budget_trials_new(RunCache *cache, const Plan *plan, GError **error);
void budget_trials_free(BudgetTrials *trials);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(BudgetTrials, budget_trials_free)

/*
 * The candidate that the plan's budgets get with a chunk of the loss, if its step takes less than *best_s, which is then lowered:
 * budgets at even loads into ret_plan, a view of the plan. *ret_found FALSE: none does. FALSE: something failed.
 */
gboolean budget_trials_find(BudgetTrials *trials, int64_t seq_chunk, double *best_s, Plan *ret_plan, gboolean *ret_found, GError **error);
