/*
 * Belady: what is used last goes first (Belady 1966). With entries of one size no policy has more hits; a step is known
 * before it runs, so here the bound can be had.
 */
#include "workloads/lower/tier-cache.h"

static double worth(const CacheEntry *entry)
{
    return -(double)entry->next_use;
}

const CachePolicy cache_policy_belady = {"belady", "latest next use", worth};
