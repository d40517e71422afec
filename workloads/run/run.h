/*
 * Run: a checked plan to its result: lower, execute in time, gather.
 */
#pragma once

#include "workloads/lower/program.h"
#include "workloads/plan/plan.h"
#include "workloads/run/result.h"

/* Options of a run beyond the plan. */
typedef struct RunOptions {
    int64_t memory_rank; /* rank whose memory is reported; -1 = the worst */
    gboolean peak_time;  /* also say when in the step its peak is, which takes another simulated step */
} RunOptions;

/*
 * What runs remember for each other: graphs, lowered segments, moments of machines and memory. It changes how long a run
 * takes and nothing else. Serves one thread; stays within a bound of memory by forgetting everything now and then.
 */
typedef struct RunCache RunCache;
RunCache *run_cache_new(void);
void run_cache_free(RunCache *cache);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RunCache, run_cache_free)

/* From now on everything that is taken from the cache is also made anew, and must be the same. For tests. */
void run_cache_verify(RunCache *cache);

/* Predicts one training step. options may be NULL. What the plan leaves open is found by trials (trials.h). */
Result *run_plan(const Plan *plan, const RunOptions *options, GError **error);
Result *run_plan_cached(RunCache *cache, const Plan *plan, const RunOptions *options, GError **error);

/* Size and place of a group of the plan. */
CollGroup run_group_geometry(const Plan *plan, GroupKind group);
