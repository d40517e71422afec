/*
 * Loads what a plan names, or hands out what an earlier plan of the cache has loaded under the same name.
 */
#pragma once

#include "workloads/plan/plan-drafts.h"
#include "workloads/plan/plan.h"

/* model_load() and cluster_load(); cache NULL: nothing is remembered. What fails is not remembered. */
Model *plan_cache_model(PlanCache *cache, const char *path, json_t *overrides, GError **error);
Cluster *plan_cache_cluster(PlanCache *cache, const char *path, int64_t n_nodes, int64_t gpus_per_node, GError **error);

/* Drafts of the plan read last, of n_parts parts; borrowed. */
PlanDrafts *plan_cache_drafts(PlanCache *cache, guint n_parts);
