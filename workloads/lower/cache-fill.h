/*
 * Cache fill: budgets of memory.cache become tables of what each layer keeps.
 *
 * Entries are the results of operators, keyed by layer, operator and micro-batch: all of them, or those that memory.keep
 * names, as far as a recomputation would make them and they have memory of their own. What an entry saves is the time of
 * its kernels and exchanges, by the laws of the device. In the order of the step each is entered when its operator has
 * run and used when its layer is recomputed, which is in the reverse order of the layers.
 *
 * A policy (cache-policy.def) plays this sequence: an entry of an earlier layer that has to go is copied out, or given up,
 * before the forward pass of the layer that needs its room; one of the same layer is never kept in HBM at all. The choice
 * (cache-choice.h) needs no play.
 */
#pragma once

#include "workloads/lower/retention.h"
#include "workloads/lower/tier-cache.h"

typedef struct CacheItem {
    gint32 layer, op;
    int64_t bytes;
    double cost_s;
} CacheItem;

/* Fills tables, events and counts. */
void cache_fill(RetentionPlan *tables, const Plan *plan, const ModelGraph *graphs, const Routing *routing);

/* Entries of a step in the order in which they come: CacheItem; free with g_array_unref. */
GArray *cache_items(const Plan *plan, const ModelGraph *graphs, const Routing *routing);

/* Time of an operator's kernels and exchanges when it runs again, in seconds. */
double cache_op_seconds(const Plan *plan, const Graph *graph, const RowCounts *rows, int op);
