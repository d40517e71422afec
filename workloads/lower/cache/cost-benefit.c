/* Cost and benefit: what saves the fewest seconds of recomputation per byte goes first; of equals, what came first. */
#include "workloads/lower/tier-cache.h"

static double worth(const CacheEntry *entry)
{
    return entry->cost_s / (double)MAX(entry->bytes, 1);
}

const CachePolicy cache_policy_cost_benefit = {"cost_benefit", "least recomputation per byte", worth};
