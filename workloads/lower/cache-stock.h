/*
 * Cache stock: what a step could keep, before any budget says how much of it: its results, what each takes and saves, and the
 * sets of a layer that are worth keeping.
 *
 * Entries are the results of operators, keyed by layer, operator and micro-batch: all of them, or those that memory.keep
 * names, as far as a recomputation would make them and they have memory of their own. What an entry saves is the time of
 * its kernels and exchanges, by the laws of the device. Sizes and times are those of even loads.
 *
 * Plans that differ in budgets, policy, window, the loss or the number of micro-batches alone have one stock.
 */
#pragma once

#include "workloads/lower/cache-choice.h"

struct CacheStock { /* CacheStock of retention.h */
    GArray *items; /* CacheItem, in the order of the step */
    Choice choice;
    int *layer_kind; /* [n_layers]: the choice's */
};

CacheStock *cache_stock_new(const Plan *plan, const ModelGraph *graphs);
void cache_stock_free(CacheStock *stock);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(CacheStock, cache_stock_free)

/* Memory that it takes. */
size_t cache_stock_size_bytes(const CacheStock *stock);

/* Entries of a step in the order in which they come: CacheItem; free with g_array_unref. */
GArray *cache_items(const Plan *plan, const ModelGraph *graphs);

/* Time of an operator's kernels and exchanges when it runs again, in seconds. */
double cache_op_seconds(const Plan *plan, const Graph *graph, const RowCounts *rows, int op);
