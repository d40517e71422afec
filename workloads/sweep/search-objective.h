/*
 * Objectives of a search: results whose best value is known from how long a step takes at least and how much it holds at least.
 */
#pragma once

#include "workloads/plan/plan.h"
#include "workloads/run/result.h"
#include "workloads/sweep/sweep.h"

typedef struct SearchObjective {
    const char *path; /* of the result */
    gboolean maximize;
    gboolean is_of_time; /* the bound depends on the step's time, else on what it holds */
    gboolean is_of_flops; /* and on the FLOPs of a token */
    double (*value)(const Result *result);
    /* What no run of the plan goes beyond whose step takes at least step_s and holds at least peak_bytes. */
    double (*bound)(const Plan *plan, double step_s, int64_t peak_bytes, double flops_per_token);
} SearchObjective;

/* The objective of a sweep; NULL and an error when it has no bound. */
const SearchObjective *search_objective_find(const Sweep *sweep, GError **error);
