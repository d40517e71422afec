/*
 * What is known of a model under a plan, whatever the machine and the schedule: its parameters and its mathematics.
 */
#pragma once

#include "models/flops.h"
#include "models/params.h"
#include "workloads/plan/plan.h"

typedef struct PlanFacts {
    ModelFlops flops;
    ParamCounts counts;
    int64_t trainable; /* parameters; copies of an expert train as one */
    int64_t per_rank;  /* parameters of one rank before anything is sharded */
} PlanFacts;

/* Facts of a plan's graphs. */
void plan_facts(const Plan *plan, const ModelGraph *graphs, PlanFacts *ret_facts);
