/*
 * Trials: what a plan leaves to the run is found by running it.
 *
 *  - What a cache that chooses keeps within its budgets (budget-trials.h). The choice (lower/cache-choice.h) knows how much the link
 *    carries, but not whose traffic is on the critical path: a link that traffic between nodes needs, too, may be better left
 *    alone, and some of the budgets unused.
 *  - memory.cache.hbm_bytes "fit": what the device has left.
 *  - loss.seq_chunk "fit": with a cache, a smaller chunk costs time in the head and frees memory in which results stay. All of
 *    no chunks, half of the micro-batch, a quarter, ... are tried, each with what it leaves to the cache.
 *
 * The fastest that fits is the result, which says what was found; more budget of either kind is never slower. Where nothing fits,
 * it is what a cache that chooses keeps nothing of, or else the first that was tried.
 */
#pragma once

#include "workloads/run/run.h"

/* Predicts the step of a plan as it is: budgets are those of even loads, nothing is left open. */
Result *run_settled(RunCache *cache, const Plan *plan, const RunOptions *options, GError **error);

/* Whether a run of the plan has something to find. */
gboolean trials_are_needed(const Plan *plan);

/* The plan with what was found: a view that borrows everything of the plan, not to be freed. */
Plan trials_settle(const Plan *plan, const Result *found);

/* Writes into a plan that leaves something to the run what a run finds. */
gboolean trials_close(Plan *plan, GError **error);

/*
 * A plan (a view) whose step is at most as long as any that a run of the plan tries. Where trials are needed it holds in time
 * alone: the memory of all is at least the static one.
 */
Plan trials_bound(const Plan *plan);

/* The plan (a view) with another recomputation, without a cache, and with nothing offloaded. */
Plan trials_recomputing(const Plan *plan, PlanRecompute recompute);
