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
    gboolean phases;     /* also what the allocator holds at the ends of its phases, which takes three walks through its memory */
} RunOptions;

/*
 * What runs remember for each other: graphs, lowered segments, moments of machines and memory. It changes how long a run
 * takes and nothing else. Serves one thread; stays within a bound of memory by forgetting everything now and then.
 *
 * What a run costs that has neighbours, measured for the 2.8 T parameter model (93 layers, 300 calls, 73,000 takes and gives
 * of memory; one core of an AMD EPYC server that others use, too):
 *  - the first plan of a layout and recomputation: 15 ms. Half is lowering, which grows with the kinds of layers; half is
 *    memory and time, which grow with the layers.
 *  - a plan that differs from one before it only in how the loss is cut: 10 us for its program (workloads/lower/frame.h; 30 us
 *    more the first time that these chunks are seen in any layout), 25 to 55 us for its time (step-memo.h: the calls of the
 *    head, which grow with the chunks, and the first few of the backward pass until the machine stands as it stood before),
 *    15 us for its memory (ledger.h: the calls of the head). None of it grows with the layers.
 *  - where such a plan leaves free segments of sizes that were not seen before (alloc-model.h: tails), its backward pass is
 *    walked in memory until it meets a walk before it (ledger-ending.h). Of 6000 cuts of 60 layouts 535 do: 310 of them
 *    meet within 17 calls, 0.4 ms each, the others go all the way, 2.5 ms.
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
