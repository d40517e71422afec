/*
 * The largest chunk of the loss that fits: fewer, larger chunks are faster, and memory alone bounds them.
 */
#pragma once

#include "workloads/plan/plan.h"

/*
 * Tokens of the largest chunk with which the step still fits in the device's memory, by the footprint (rows as even as they are in
 * expectation): the whole micro-batch, or a half, a quarter, … of it, rounded up. 0 when none does, or the footprint
 * does not cover the plan.
 */
int64_t chunk_bound_tokens(const Plan *plan);
