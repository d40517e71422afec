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
} RunOptions;

/*
 * Predicts one training step. options may be NULL. Where memory.cache leaves the choice, the step is tried with all of the DDR budget,
 * with parts of it and without: the fastest is the result, and says which part it was.
 */
Result *run_plan(const Plan *plan, const RunOptions *options, GError **error);

/* Size and place of a group of the plan. */
CollGroup run_group_geometry(const Plan *plan, GroupKind group);
