#include "workloads/lower/tier-cache.h"

#define CACHE_POLICY(id, title) extern const CachePolicy cache_policy_##id;
#include "workloads/lower/cache-policy.def"
#undef CACHE_POLICY

static const CachePolicy *const policies[N_CACHE_POLICIES] = {
#define CACHE_POLICY(id, title) [CACHE_POLICY_##id] = &cache_policy_##id,
#include "workloads/lower/cache-policy.def"
#undef CACHE_POLICY
};

enum { N_TIERS = CACHE_DDR + 1 };

typedef struct Placed {
    CacheEntry entry;
    double worth;
    int tier;
} Placed;

struct TierCache {
    const CachePolicy *policy;
    GArray *entries; /* Placed */
    GArray *of_tier[N_TIERS]; /* int: numbers of the entries of a tier, in the order in which they came */
    int64_t budget[N_TIERS], held[N_TIERS], most[N_TIERS];
    int64_t n_evictions;
};

const CachePolicy *cache_policy(CachePolicyKind kind)
{
    g_assert(kind < N_CACHE_POLICIES);
    return policies[kind];
}

TierCache *tier_cache_new(CachePolicyKind policy, int64_t hbm_bytes, int64_t ddr_bytes)
{
    TierCache *cache = g_new0(TierCache, 1);
    cache->policy = cache_policy(policy);
    cache->entries = g_array_new(FALSE, TRUE, sizeof(Placed));
    cache->budget[CACHE_HBM] = hbm_bytes;
    cache->budget[CACHE_DDR] = ddr_bytes;
    for (int t = 0; t < N_TIERS; t++) {
        cache->of_tier[t] = g_array_new(FALSE, TRUE, sizeof(int));
    }
    return cache;
}

void tier_cache_free(TierCache *cache)
{
    if (cache != NULL) {
        for (int t = 0; t < N_TIERS; t++) {
            g_array_unref(cache->of_tier[t]);
        }
        g_array_unref(cache->entries);
        g_free(cache);
    }
}

static Placed *placed(const TierCache *cache, int entry)
{
    return &g_array_index(cache->entries, Placed, entry);
}

/* Position in a tier of the entry that goes first; worth below `worth`, or -1. */
static int victim(const TierCache *cache, int tier, double worth)
{
    const GArray *members = cache->of_tier[tier];
    int found = -1;
    for (guint i = 0; i < members->len; i++) {
        const Placed *one = placed(cache, g_array_index(members, int, i));
        if (one->worth < worth || (found < 0 && one->worth <= worth)) {
            worth = one->worth;
            found = (int)i;
        }
    }
    return found;
}

static void leave(TierCache *cache, int tier, int position)
{
    int entry = g_array_index(cache->of_tier[tier], int, position);
    cache->held[tier] -= placed(cache, entry)->entry.bytes;
    placed(cache, entry)->tier = CACHE_NOWHERE;
    g_array_remove_index(cache->of_tier[tier], (guint)position);
}

/* Finds room for an entry in a tier or below it. */
static void settle(TierCache *cache, int entry, int tier)
{
    int64_t bytes = placed(cache, entry)->entry.bytes;
    for (; tier < N_TIERS; tier++) {
        int goes = 0;
        while (bytes <= cache->budget[tier] && cache->held[tier] + bytes > cache->budget[tier]) {
            goes = victim(cache, tier, placed(cache, entry)->worth);
            if (goes < 0) {
                break;
            }
            int other = g_array_index(cache->of_tier[tier], int, goes);
            leave(cache, tier, goes);
            cache->n_evictions++;
            settle(cache, other, tier + 1);
        }
        if (bytes <= cache->budget[tier] && cache->held[tier] + bytes <= cache->budget[tier]) {
            placed(cache, entry)->tier = tier;
            g_array_append_val(cache->of_tier[tier], entry);
            cache->held[tier] += bytes;
            cache->most[tier] = MAX(cache->most[tier], cache->held[tier]);
            return;
        }
    }
}

int tier_cache_put(TierCache *cache, const CacheEntry *entry)
{
    Placed one = {*entry, cache->policy->worth(entry), CACHE_NOWHERE};
    g_array_append_val(cache->entries, one);
    settle(cache, (int)cache->entries->len - 1, CACHE_HBM);
    return (int)cache->entries->len - 1;
}

int tier_cache_place(const TierCache *cache, int entry)
{
    return placed(cache, entry)->tier;
}

int tier_cache_take(TierCache *cache, int entry)
{
    int tier = placed(cache, entry)->tier;
    const GArray *members = cache->of_tier[tier];
    for (guint i = 0; tier != CACHE_NOWHERE && i < members->len; i++) {
        if (g_array_index(members, int, i) == entry) {
            leave(cache, tier, (int)i);
            break;
        }
    }
    return tier;
}

int64_t tier_cache_bytes(const TierCache *cache, int tier, int64_t *ret_most)
{
    *ret_most = cache->most[tier];
    return cache->held[tier];
}

int64_t tier_cache_evictions(const TierCache *cache)
{
    return cache->n_evictions;
}
