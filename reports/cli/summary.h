/*
 * The summary of a run that a person sees: one screen.
 */
#pragma once

#include "workloads/plan/plan.h"
#include "workloads/run/result.h"

/* Step time and its parts, rates, peak memory and its parts, advice, warnings, evidence; caller frees. */
char *summary_text(const Plan *plan, const Result *result);
