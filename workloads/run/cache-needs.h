/*
 * Cache needs: what the entries of a cache take on the ranks whose loads are drawn.
 *
 * All ranks keep the same results, and what these take goes with the rows that a rank gets. A budget is one of every rank, so
 * what counts is the rank that holds most, over all ranks of the sampled groups. Where all of a super-node's DDR is one pool,
 * what counts of it is the mean rank.
 */
#pragma once

#include "workloads/lower/cache-stock.h"

typedef struct CacheNeeds CacheNeeds;
struct RunCache;

/* routings: Routing of each sampled group; empty: every rank has the same rows. Entries are borrowed. */
CacheNeeds *cache_needs_new(const Plan *plan, const ModelGraph *graphs, const CacheStock *stock, const GPtrArray *routings);
void cache_needs_free(CacheNeeds *needs);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(CacheNeeds, cache_needs_free)

/* Bytes in HBM and DDR that the entries of a plan without anything open take where its backward pass finds them. FALSE: its loads do not fit it. */
gboolean cache_held(struct RunCache *cache, const Plan *plan, int64_t *ret_hbm_bytes, int64_t *ret_ddr_bytes, GError **error);

/* Bytes in HBM and DDR of entries where `place` (by entry, Keeping) has them. */
void cache_needs_of(CacheNeeds *needs, const guint8 *place, int64_t *ret_hbm_bytes, int64_t *ret_ddr_bytes);
