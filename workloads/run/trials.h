/*
 * Trials: what a plan leaves to the run is found by running it.
 *
 *  - How much of a DDR budget to use. The choice (lower/cache-choice.h) knows how much the link carries, but not whose traffic
 *    is on the critical path: a link that traffic between nodes needs, too, may be better left alone. The whole budget (or the
 *    host's memory, if that is less) is tried, and every step below it down to a 16th: powers of two and what lies halfway, so
 *    that a larger budget tries what a smaller one did.
 *  - memory.cache.hbm_bytes "fit": what the device has left. A budget b has the peak p(b), which grows by at most what b grows
 *    by, since entries of the cache are all that comes with it; so b + (capacity - p(b)) fits again, and holds at least as much.
 *  - loss.seq_chunk "fit": with a cache, a smaller chunk costs time in the head and frees memory in which results stay. All of
 *    no chunks, half of the micro-batch, a quarter, ... are tried, each with what it leaves to the cache.
 *
 * The fastest that fits is the result, which says what was found. Chunks come first, with the whole DDR budget; steps of
 * that with the chunk found.
 */
#pragma once

#include "workloads/run/run.h"

/* Predicts the step of a plan that leaves nothing open. */
Result *run_settled(RunCache *cache, const Plan *plan, const RunOptions *options, GError **error);

/* The plan with what was found: a view that borrows everything of the plan, not to be freed. */
Plan trials_settle(const Plan *plan, const Result *found);

/* Writes into a plan that is open what a run finds. */
gboolean trials_close(Plan *plan, GError **error);

/*
 * Plans whose steps are at most as long as any that a run of the plan tries, one of them each: how many, and each (a view).
 * Where the plan is open they hold in time alone: the memory of all is at least the static one.
 */
size_t trials_n_bounds(const Plan *plan);
Plan trials_bound(const Plan *plan, size_t bound_idx);
