/*
 * Advice: what would make a plan fit, found by predicting plans that differ from it in one thing, then in several.
 */
#pragma once

#include <jansson.h>

#include "workloads/plan/plan.h"
#include "workloads/run/result.h"

/*
 * Adds to the advice of a result that does not fit the changes that would make it fit, the gentlest first, each with
 * the memory and the step time that it leads to. plan, name and base_dir are those of plan_from_json. Takes as long
 * as some ten predictions.
 */
void advice_find(Result *result, json_t *plan, const char *name, const char *base_dir);

/*
 * Warns where a plan with memory.cache fits, but would be faster with memory.recompute "none", which fits, too. result: of a run of
 * the plan. Takes as long as one prediction.
 */
void advice_warn_cache(Result *result, const Plan *plan);
