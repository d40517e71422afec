/*
 * The mixture of experts in a plan: workload.routing and moe.
 */
#pragma once

#include "sim/base/json-read.h"
#include "workloads/plan/plan.h"

/* Reads "routing" of the workload; paths are relative to base_dir (may be NULL). The model has been read. */
void read_moe_routing(Plan *plan, JsonObject *workload, const char *base_dir);

/* Reads "moe" of the plan. */
void read_moe(Plan *plan, JsonObject *root);
