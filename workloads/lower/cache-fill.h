/*
 * Cache fill: budgets of memory.cache become tables of what each layer keeps.
 *
 * In the order of the step each entry (cache-stock.h) is made when its operator has run and used when its layer is
 * recomputed, which is in the reverse order of the layers.
 *
 * A policy (cache-policy.def) plays this sequence: an entry of an earlier layer that has to go is copied out, or given up,
 * before the forward pass of the layer that needs its room; one of the same layer is never kept in HBM at all. The choice
 * (cache-choice.h) needs no play.
 */
#pragma once

#include "workloads/lower/cache-stock.h"

/* Fills tables, events and counts. */
void cache_fill(RetentionPlan *tables, const Plan *plan, const ModelGraph *graphs, const CacheStock *stock);
