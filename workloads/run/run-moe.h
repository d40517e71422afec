/*
 * What a run says of its mixture of experts: loads, drops, padding, groups, and moving experts.
 */
#pragma once

#include "workloads/run/groups.h"
#include "workloads/run/result.h"

/* Fills the moe part of a result. */
void run_moe_fill(const RunGroups *groups, Result *result);
