/*
 * Tier cache: entries in HBM, behind it DDR, each with a budget of bytes, and a policy that says what goes.
 *
 * An entry that comes takes room in HBM. While there is none, the entry of least worth, the newcomer included, goes one
 * tier down: from HBM to DDR, where the same happens, from DDR to nowhere. An entry larger than a tier passes it by.
 * Each entry is used once and then gone.
 *
 * Invariants: (1) no tier holds more than its budget; (2) an entry is in one place; (3) equal worth: the entry that came
 * first goes first, so the outcome depends on nothing but the sequence.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef enum CachePolicyKind {
#define CACHE_POLICY(id, title) CACHE_POLICY_##id,
#include "workloads/lower/cache-policy.def"
#undef CACHE_POLICY
    N_CACHE_POLICIES,
    CACHE_CHOICE = N_CACHE_POLICIES /* no policy: the whole step is known, and what pays best is chosen */
} CachePolicyKind;

typedef struct CacheEntry {
    int64_t bytes;
    double cost_s;    /* to make it again */
    int64_t came;     /* when, in accesses */
    int64_t next_use; /* when, in accesses; known, because a step is */
} CacheEntry;

typedef struct CachePolicy {
    const char *id, *title; /* set from the registry */
    /* The entry of least worth goes first. */
    double (*worth)(const CacheEntry *entry);
} CachePolicy;

const CachePolicy *cache_policy(CachePolicyKind kind);

enum { CACHE_NOWHERE, CACHE_HBM, CACHE_DDR };

typedef struct TierCache TierCache;

/* Budgets in bytes. */
TierCache *tier_cache_new(CachePolicyKind policy, int64_t hbm_bytes, int64_t ddr_bytes);
void tier_cache_free(TierCache *cache);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(TierCache, tier_cache_free)

/* Enters an entry; returns its number, counted from 0. Entries that were in the cache before may move. */
int tier_cache_put(TierCache *cache, const CacheEntry *entry);

/* Where an entry is now: CACHE_NOWHERE, CACHE_HBM or CACHE_DDR. */
int tier_cache_place(const TierCache *cache, int entry);

/* Uses an entry: returns where it was, and takes it out. */
int tier_cache_take(TierCache *cache, int entry);

/* Bytes that a tier holds, and the most that it held. */
int64_t tier_cache_bytes(const TierCache *cache, int tier, int64_t *ret_most);

/* Entries that went down a tier after they had been placed. */
int64_t tier_cache_evictions(const TierCache *cache);
