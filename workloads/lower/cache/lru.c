/* Least recently used: an entry is used once, so what came first goes first. */
#include "workloads/lower/tier-cache.h"

static double worth(const CacheEntry *entry)
{
    return (double)entry->came;
}

const CachePolicy cache_policy_lru = {"lru", "least recently used", worth};
