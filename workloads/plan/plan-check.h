/*
 * What has to hold between the fields of a plan: degrees that divide, batches that split, parts that exist.
 */
#pragma once

#include "sim/base/json-read.h"
#include "workloads/plan/plan.h"

/*
 * Checks a plan whose fields were read, and fills in what follows from them (dp_shard, efsdp, batches). Mistakes stick
 * to the root object; each names the fields that clash and, where there is one, the nearest legal value.
 */
void plan_check(Plan *plan, JsonObject *root);
