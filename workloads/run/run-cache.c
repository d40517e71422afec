#include "workloads/run/run-cache.h"

#include <string.h>

/*
 * What a cache may hold of layouts before it forgets them, and how much more while the next plan is of one that it knows; what
 * it may hold of what layouts share.
 */
enum { CACHED_BYTES_MAX = 48 << 20, CACHED_BYTES_MORE = 16 << 20, LASTING_BYTES_MAX = 112 << 20 };

static void plan_unref(void *plan)
{
    plan_free(plan);
}

static void trials_start(TrialMemo *trials)
{
    *trials = (TrialMemo){intern_new(), intern_new(), g_ptr_array_new_with_free_func(plan_unref), g_array_new(FALSE, TRUE, sizeof(TrialShown))};
}

static void trials_end(TrialMemo *trials)
{
    intern_free(trials->plans);
    intern_free(trials->keys);
    g_ptr_array_unref(trials->alive);
    g_array_unref(trials->shown);
}

/* The plan without what names it and without its budgets, which `place` says more of. */
static guint32 number_of_plan(TrialMemo *trials, const Plan *plan)
{
    Plan key;
    gboolean is_new;
    G_STATIC_ASSERT(sizeof key % 8 == 0);
    memcpy(&key, plan, sizeof key);
    key.extra_refs = 0;
    key.owner = NULL;
    key.name = NULL;
    key.warnings = NULL;
    key.cache_hbm_bytes = key.cache_ddr_bytes = 0;
    guint32 number = intern_bytes(trials->plans, &key, sizeof key, &is_new);
    if (is_new) {
        g_ptr_array_add(trials->alive, (Plan *)(uintptr_t)plan_ref(plan));
    }
    return number;
}

RunCache *run_cache_new(void)
{
    RunCache *cache = g_new0(RunCache, 1);
    cache->lowered = lower_cache_new();
    cache->steps = step_memo_new();
    cache->ledgers = ledger_memo_new();
    cache->facts = g_hash_table_new_full(NULL, NULL, NULL, g_free);
    cache->kept = g_array_new(FALSE, TRUE, sizeof(KeptBytes));
    trials_start(&cache->trials);
    return cache;
}

TrialShown *run_cache_trial(RunCache *cache, const Plan *plan, const void *place, size_t n_bytes)
{
    TrialMemo *trials = &cache->trials;
    g_autofree guint64 *words = g_malloc(n_bytes + sizeof *words);
    gboolean is_new;
    words[0] = number_of_plan(trials, plan);
    memcpy(words + 1, place, n_bytes);
    guint32 key = intern_bytes(trials->keys, words, n_bytes + sizeof *words, &is_new);
    if (is_new) {
        g_array_set_size(trials->shown, key + 1);
    }
    return &g_array_index(trials->shown, TrialShown, key);
}

void run_cache_trim_trials(RunCache *cache)
{
    enum { TRIALS_BYTES_MAX = 16 << 20 };
    if (intern_size_bytes(cache->trials.keys) + intern_size_bytes(cache->trials.plans) > TRIALS_BYTES_MAX) {
        trials_end(&cache->trials);
        trials_start(&cache->trials);
    }
}

static void routing_destroy(void *routing)
{
    routing_free(routing);
}

GPtrArray *run_routings_new(void)
{
    return g_ptr_array_new_with_free_func(routing_destroy);
}

static void forget_routings(RunCache *cache)
{
    g_clear_pointer(&cache->routings, g_ptr_array_unref);
    if (cache->routings_plan != NULL) {
        plan_free((Plan *)(uintptr_t)cache->routings_plan);
        cache->routings_plan = NULL;
    }
}

GPtrArray *run_cache_routings(const RunCache *cache, const RoutingSpec *spec, guint n)
{
    gboolean same = cache->routings != NULL && cache->routings->len == n && memcmp(&cache->routings_spec, spec, sizeof *spec) == 0;
    return same ? cache->routings : NULL;
}

void run_cache_keep_routings(RunCache *cache, const Plan *plan, const RoutingSpec *spec, GPtrArray *routings)
{
    forget_routings(cache);
    cache->routings = g_ptr_array_ref(routings);
    memcpy(&cache->routings_spec, spec, sizeof *spec);
    cache->routings_plan = plan_ref(plan);
}

void run_cache_free(RunCache *cache)
{
    if (cache != NULL) {
        forget_routings(cache);
        trials_end(&cache->trials);
        step_memo_free(cache->steps); /* it holds segments, whose graphs are those of `lowered` */
        g_hash_table_unref(cache->facts);
        g_array_unref(cache->kept);
        lower_cache_free(cache->lowered);
        ledger_memo_free(cache->ledgers);
        g_free(cache);
    }
}

void run_cache_verify(RunCache *cache)
{
    cache->verifies = TRUE;
}

size_t run_cache_size_bytes(RunCache *cache)
{
    enum { SLOT_BYTES = 64 };
    return lower_cache_size_bytes(cache->lowered) + step_memo_size_bytes(cache->steps) + ledger_memo_size_bytes(cache->ledgers) +
           g_hash_table_size(cache->facts) * (sizeof(PlanFacts) + SLOT_BYTES) + cache->kept->len * sizeof(KeptBytes);
}

void run_cache_trim(RunCache *cache, const Plan *next)
{
    size_t n_bytes = run_cache_size_bytes(cache), more = lower_cache_has_scope(cache->lowered, next) ? CACHED_BYTES_MORE : 0;
    gboolean forgets_all = lower_cache_lasting_bytes(cache->lowered) > LASTING_BYTES_MAX;
    if (!forgets_all && n_bytes <= CACHED_BYTES_MAX + more) {
        return;
    }
    step_memo_clear(cache->steps);
    ledger_memo_clear(cache->ledgers); /* it names segments of the lowered */
    g_array_set_size(cache->kept, 0);
    lower_cache_forget_layouts(cache->lowered);
    if (forgets_all) {
        g_hash_table_remove_all(cache->facts);
        lower_cache_free(cache->lowered);
        cache->lowered = lower_cache_new();
    }
}

const PlanFacts *run_cache_facts(RunCache *cache, const Plan *plan, const ModelGraph *graphs)
{
    PlanFacts *facts = g_hash_table_lookup(cache->facts, graphs);
    if (facts == NULL) {
        facts = g_new0(PlanFacts, 1);
        plan_facts(plan, graphs, facts);
        g_hash_table_insert(cache->facts, (void *)(uintptr_t)graphs, facts);
    }
    return facts;
}

KeptBytes *run_cache_kept(RunCache *cache, const Plan *plan)
{
    guint scope = (guint)lower_cache_scope(cache->lowered, plan);
    if (scope >= cache->kept->len) {
        g_array_set_size(cache->kept, scope + 1);
    }
    return &g_array_index(cache->kept, KeptBytes, scope);
}

Program *run_cache_lower(RunCache *cache, const Plan *plan, const ModelGraph *graphs, const Routing *routing, int64_t ep_rank)
{
    if (cache == NULL) {
        return lower_plan(plan, graphs, routing, ep_rank);
    }
    Program *program = lower_plan_cached(cache->lowered, plan, graphs, routing, ep_rank);
    if (cache->verifies) {
        g_autoptr(Program) anew = lower_plan(plan, graphs, routing, ep_rank);
        g_assert(program_equal(program, anew));
    }
    return program;
}

gboolean run_cache_ledger(RunCache *cache, const Program *program, int64_t capacity_bytes, Ledger *ret_ledger, GError **error)
{
    return cache != NULL ? ledger_run_memo(cache->ledgers, program, capacity_bytes, ret_ledger, error)
                         : ledger_run(program, capacity_bytes, ret_ledger, error);
}
