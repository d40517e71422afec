/*
 * Tiers: what a run says about its memory beyond HBM: caches, copies to DDR, pinned host memory.
 */
#pragma once

#include "workloads/lower/retention.h"
#include "workloads/run/ledger.h"
#include "workloads/run/result.h"
#include "workloads/run/run.h"
#include "workloads/run/step.h"

/*
 * Fills result->tiers, when something of the plan is cached or moves, `fits` with the host's memory, and warnings.
 * ledger: of the rank whose memory is reported.
 */
void tiers_fill(RunCache *cache, const Plan *plan, const ModelGraph *graphs, const Routing *routing, const Ledger *ledger,
                const StepTimes *times, Result *result);
