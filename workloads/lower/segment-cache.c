#include "workloads/lower/segment-cache.h"

#include <string.h>

#include "sim/base/intern.h"
#include "workloads/lower/lower.h"

/* A plan with the fields blanked out that do not matter to what is remembered. */
typedef struct PlanKey {
    Plan plan;
} PlanKey;

/* Something remembered for plans; keeps one of them alive. */
typedef struct Entry {
    PlanKey key; /* first: it is its own key in the table */
    const Plan *plan;
    int scope;
    ModelGraph *graphs;
    GArray *variants; /* GraphVariant: of the graphs, or NULL */
    RetentionPlan *retention;
    CacheStock *stock;
} Entry;

/* Graphs whose loss runs in slices of other widths. */
typedef struct GraphVariant {
    int64_t vocab_chunk;
    ModelGraph *graphs; /* the first: those that the entry owns */
} GraphVariant;

typedef struct FrameEntry {
    gint32 key[FRAME_KEY_WORDS];
    void *frame;
    GDestroyNotify destroy;
} FrameEntry;

typedef struct SegmentEntry {
    gint32 key[1 + SEGMENT_KEY_WORDS]; /* scope, then the words */
    Segment *segment;
} SegmentEntry;

/* A device's prices. */
typedef struct DevicePrices {
    const Device *device; /* kept alive by the plan */
    const Plan *plan;
    PriceList *prices;
} DevicePrices;

struct LowerCache {
    GHashTable *graphs, *stocks, *scopes, *kept; /* Entry; for look-up alone, like the other table */
    GHashTable *segments;        /* SegmentEntry */
    GHashTable *bodies, *body_scopes; /* SegmentEntry, Entry: the same of bodies (body.h) */
    GArray *frames;              /* FrameEntry, in the order in which they came */
    Intern *contents;
    GArray *prices;              /* DevicePrices: a sweep has few devices */
    int n_scopes, n_body_scopes;
    GPtrArray *uncounted; /* Segment, borrowed: put in since size_bytes was last brought up to date */
    size_t size_bytes;    /* of entries, frames and counted segments */
    size_t graph_bytes, body_bytes;
};

static guint bytes_hash(const void *data, size_t n_bytes)
{
    uint64_t hash = n_bytes;
    for (size_t i = 0; i + 8 <= n_bytes; i += 8) {
        uint64_t word;
        memcpy(&word, (const char *)data + i, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return (guint)(hash ^ hash >> 32);
}

static guint plan_key_hash(const void *key)
{
    return bytes_hash(key, sizeof(PlanKey));
}

static gboolean plan_key_equal(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(PlanKey)) == 0;
}

static guint segment_key_hash(const void *key)
{
    guint hash = 0;
    for (int i = 0; i < 1 + SEGMENT_KEY_WORDS; i++) {
        hash = (hash ^ (guint)((const gint32 *)key)[i]) * 0x9e3779b1u;
        hash ^= hash >> 15;
    }
    return hash;
}

static gboolean segment_key_equal(const void *a, const void *b)
{
    return memcmp(a, b, (1 + SEGMENT_KEY_WORDS) * sizeof(gint32)) == 0;
}

static void entry_free(void *data)
{
    Entry *entry = data;
    for (guint i = 1; entry->variants != NULL && i < entry->variants->len; i++) {
        model_graph_free(g_array_index(entry->variants, GraphVariant, i).graphs);
    }
    g_clear_pointer(&entry->variants, g_array_unref);
    retention_plan_free(entry->retention);
    cache_stock_free(entry->stock);
    model_graph_free(entry->graphs);
    plan_free((Plan *)(uintptr_t)entry->plan);
    g_free(entry);
}

static void segment_entry_free(void *data)
{
    segment_unref(((SegmentEntry *)data)->segment);
    g_free(data);
}

static void device_prices_clear(void *data)
{
    DevicePrices *prices = data;
    price_list_free(prices->prices);
    plan_free((Plan *)(uintptr_t)prices->plan);
}

static void frame_entry_clear(void *data)
{
    FrameEntry *entry = data;
    entry->destroy(entry->frame);
}

LowerCache *lower_cache_new(void)
{
    LowerCache *cache = g_new0(LowerCache, 1);
    cache->graphs = g_hash_table_new_full(plan_key_hash, plan_key_equal, NULL, entry_free);
    cache->scopes = g_hash_table_new_full(plan_key_hash, plan_key_equal, NULL, entry_free);
    cache->stocks = g_hash_table_new_full(plan_key_hash, plan_key_equal, NULL, entry_free);
    cache->kept = g_hash_table_new_full(plan_key_hash, plan_key_equal, NULL, entry_free);
    cache->segments = g_hash_table_new_full(segment_key_hash, segment_key_equal, NULL, segment_entry_free);
    cache->bodies = g_hash_table_new_full(segment_key_hash, segment_key_equal, NULL, segment_entry_free);
    cache->body_scopes = g_hash_table_new_full(plan_key_hash, plan_key_equal, NULL, entry_free);
    cache->contents = intern_new();
    cache->prices = g_array_new(FALSE, TRUE, sizeof(DevicePrices));
    g_array_set_clear_func(cache->prices, device_prices_clear);
    cache->uncounted = g_ptr_array_new();
    cache->frames = g_array_new(FALSE, FALSE, sizeof(FrameEntry));
    g_array_set_clear_func(cache->frames, frame_entry_clear);
    return cache;
}

void lower_cache_free(LowerCache *cache)
{
    if (cache != NULL) {
        g_array_unref(cache->frames);
        g_hash_table_unref(cache->segments);
        g_hash_table_unref(cache->bodies);
        g_hash_table_unref(cache->body_scopes);
        g_hash_table_unref(cache->scopes);
        g_hash_table_unref(cache->kept);
        g_hash_table_unref(cache->stocks);
        g_hash_table_unref(cache->graphs);
        intern_free(cache->contents);
        g_array_unref(cache->prices);
        g_ptr_array_unref(cache->uncounted);
        g_free(cache);
    }
}

/* What a table takes beside an entry. */
enum { SLOT_BYTES = 64 };

/* Counts the segments that have been put in since. */
static void count_segments(LowerCache *cache)
{
    for (guint i = 0; i < cache->uncounted->len; i++) {
        const Segment *segment = g_ptr_array_index(cache->uncounted, i);
        *(segment->hooks != NULL ? &cache->body_bytes : &cache->size_bytes) += segment_size_bytes(segment);
    }
    g_ptr_array_set_size(cache->uncounted, 0);
}

size_t lower_cache_size_bytes(LowerCache *cache)
{
    count_segments(cache);
    return cache->size_bytes;
}

size_t lower_cache_lasting_bytes(LowerCache *cache)
{
    size_t n_bytes = cache->graph_bytes + cache->body_bytes + intern_size_bytes(cache->contents);
    for (guint i = 0; i < cache->prices->len; i++) {
        n_bytes += price_list_size_bytes(g_array_index(cache->prices, DevicePrices, i).prices);
    }
    return n_bytes;
}

void lower_cache_forget_layouts(LowerCache *cache)
{
    count_segments(cache);
    g_array_set_size(cache->frames, 0);
    g_hash_table_remove_all(cache->segments);
    g_hash_table_remove_all(cache->scopes);
    g_hash_table_remove_all(cache->kept);
    cache->n_scopes = 0;
    cache->size_bytes = 0;
}

/* The plan without what names it and what neither its layers nor its graphs can see. */
static void start_key(const Plan *plan, PlanKey *ret_key)
{
    memset(ret_key, 0, sizeof *ret_key);
    memcpy(&ret_key->plan, plan, sizeof *plan);
    ret_key->plan.extra_refs = 0;
    ret_key->plan.owner = NULL;
    ret_key->plan.name = NULL;
    ret_key->plan.warnings = NULL;
    ret_key->plan.global_batch = ret_key->plan.n_micro_batches = 0;
}

/* Leaves out how much a cache holds: tables say what that comes to. */
static void forget_budgets(PlanKey *key)
{
    key->plan.cache_hbm_bytes = key->plan.cache_ddr_bytes = key->plan.cache_window = 0;
    key->plan.cache_fits = FALSE;
    key->plan.cache_policy = 0;
}

static Entry *find_entry(LowerCache *cache, GHashTable *table, const Plan *plan, const PlanKey *key)
{
    Entry *entry = g_hash_table_lookup(table, key);
    if (entry == NULL) {
        entry = g_new0(Entry, 1);
        memcpy(&entry->key, key, sizeof *key);
        entry->plan = plan_ref(plan);
        entry->scope = -1;
        g_hash_table_insert(table, &entry->key, entry);
        cache->size_bytes += sizeof *entry + sizeof *plan + SLOT_BYTES;
    }
    return entry;
}

/* Those of an entry whose slices of the vocabulary are that wide. */
static const ModelGraph *find_variant(LowerCache *cache, Entry *entry, int64_t vocab_chunk)
{
    GraphVariant variant = {vocab_chunk, entry->graphs};
    if (entry->variants == NULL) {
        entry->variants = g_array_new(FALSE, FALSE, sizeof(GraphVariant));
        g_array_append_val(entry->variants, variant);
    }
    for (guint i = 0; i < entry->variants->len; i++) {
        const GraphVariant *known = &g_array_index(entry->variants, GraphVariant, i);
        if (known->vocab_chunk == vocab_chunk) {
            return known->graphs;
        }
    }
    variant.graphs = model_graph_vary(entry->graphs, vocab_chunk);
    cache->graph_bytes += model_graph_size_bytes(variant.graphs);
    g_array_append_val(entry->variants, variant);
    return variant.graphs;
}

const ModelGraph *lower_cache_graphs(LowerCache *cache, const Plan *plan)
{
    PlanKey key;
    start_key(plan, &key);
    /* graphs know whether the loss is cut and how wide its slices are, but nothing of shards, of memory or of the machine */
    key.plan.seq_chunk = plan->seq_chunk > 0;
    key.plan.dp_replicate = key.plan.dp_shard = key.plan.efsdp = 0;
    key.plan.cluster = NULL;
    key.plan.reshard_after_forward = FALSE;
    key.plan.network = PLAN_NETWORK_FLOWS;
    key.plan.prefetch = PLAN_PREFETCH_IMPLICIT;
    key.plan.recompute = PLAN_RECOMPUTE_NONE;
    memset(key.plan.keep, 0, sizeof key.plan.keep);
    forget_budgets(&key);
    key.plan.has_cache = key.plan.cache_has_keep = FALSE;
    key.plan.vocab_chunk = plan->vocab_chunk > 0;
    Entry *entry = find_entry(cache, cache->graphs, plan, &key);
    if (entry->graphs == NULL) {
        entry->graphs = lower_graphs(plan);
        cache->graph_bytes += model_graph_size_bytes(entry->graphs);
    }
    return plan->vocab_chunk > 0 ? find_variant(cache, entry, plan->vocab_chunk) : entry->graphs;
}

PriceList *lower_cache_prices(LowerCache *cache, const Plan *plan)
{
    const Device *device = plan->cluster->device;
    for (guint i = 0; i < cache->prices->len; i++) {
        const DevicePrices *known = &g_array_index(cache->prices, DevicePrices, i);
        if (known->device == device) {
            return known->prices;
        }
    }
    DevicePrices prices = {device, plan_ref(plan), price_list_new()};
    g_array_append_val(cache->prices, prices);
    return prices.prices;
}

static void scope_key(const Plan *plan, PlanKey *ret_key)
{
    start_key(plan, ret_key);
    ret_key->plan.seq_chunk = ret_key->plan.vocab_chunk = 0;
    ret_key->plan.seq_chunk_fits = FALSE;
    forget_budgets(ret_key);
}

const CacheStock *lower_cache_stock(LowerCache *cache, const Plan *plan, const ModelGraph *graphs)
{
    PlanKey key;
    scope_key(plan, &key);
    Entry *entry = find_entry(cache, cache->stocks, plan, &key);
    if (entry->stock == NULL) {
        entry->stock = cache_stock_new(plan, graphs);
        cache->graph_bytes += cache_stock_size_bytes(entry->stock);
    }
    return entry->stock;
}

RetentionPlan *lower_cache_retention(LowerCache *cache, const Plan *plan, const ModelGraph *graphs)
{
    PlanKey key;
    start_key(plan, &key);
    key.plan.seq_chunk = key.plan.vocab_chunk = 0;
    Entry *entry = find_entry(cache, cache->kept, plan, &key);
    if (entry->retention == NULL) {
        const CacheStock *stock = plan->has_cache ? lower_cache_stock(cache, plan, graphs) : NULL;
        entry->retention = retention_plan_new(plan, graphs, stock);
        cache->size_bytes += retention_plan_size_bytes(entry->retention);
    }
    return entry->retention;
}

int lower_cache_scope(LowerCache *cache, const Plan *plan)
{
    PlanKey key;
    scope_key(plan, &key);
    Entry *entry = find_entry(cache, cache->scopes, plan, &key);
    if (entry->scope < 0) {
        entry->scope = cache->n_scopes++;
    }
    return entry->scope;
}

int lower_cache_body_scope(LowerCache *cache, const Plan *plan)
{
    PlanKey key;
    scope_key(plan, &key);
    key.plan.dp_replicate = plan->dp_replicate * plan->dp_shard; /* ranks that sum counts of experts */
    key.plan.dp_shard = key.plan.efsdp = 0;
    Entry *entry = find_entry(cache, cache->body_scopes, plan, &key);
    if (entry->scope < 0) {
        entry->scope = cache->n_body_scopes++;
    }
    return entry->scope;
}

gboolean lower_cache_has_scope(const LowerCache *cache, const Plan *plan)
{
    PlanKey key;
    scope_key(plan, &key);
    return g_hash_table_contains(cache->scopes, &key);
}

int lower_cache_loss_scope(LowerCache *cache, const Plan *plan)
{
    PlanKey key;
    start_key(plan, &key);
    key.plan.seq_chunk = key.plan.vocab_chunk = 0;
    key.plan.dp_replicate = key.plan.dp_shard = key.plan.ep = key.plan.efsdp = -1; /* as no plan has them */
    key.plan.reshard_after_forward = FALSE;
    key.plan.prefetch = PLAN_PREFETCH_IMPLICIT;
    key.plan.recompute = PLAN_RECOMPUTE_NONE;
    memset(key.plan.keep, 0, sizeof key.plan.keep);
    Entry *entry = find_entry(cache, cache->scopes, plan, &key);
    if (entry->scope < 0) {
        entry->scope = cache->n_scopes++;
    }
    return entry->scope;
}

void *lower_cache_frame(const LowerCache *cache, const gint32 *key)
{
    for (guint i = cache->frames->len; i-- > 0;) {
        const FrameEntry *entry = &g_array_index(cache->frames, FrameEntry, i);
        if (memcmp(entry->key, key, sizeof entry->key) == 0) {
            return entry->frame;
        }
    }
    return NULL;
}

void lower_cache_put_frame(LowerCache *cache, const gint32 *key, void *frame, size_t n_bytes, GDestroyNotify destroy)
{
    FrameEntry entry = {.frame = frame, .destroy = destroy};
    memcpy(entry.key, key, sizeof entry.key);
    cache->size_bytes += sizeof entry + n_bytes;
    g_array_append_val(cache->frames, entry);
}

gint32 lower_cache_number(LowerCache *cache, const void *data, size_t n_bytes)
{
    gboolean is_new;
    return (gint32)intern_bytes(cache->contents, data, n_bytes, &is_new);
}

static Segment *get_segment(GHashTable *table, int scope, const gint32 *key)
{
    SegmentEntry wanted = {.key = {scope}};
    memcpy(wanted.key + 1, key, SEGMENT_KEY_WORDS * sizeof(gint32));
    const SegmentEntry *entry = g_hash_table_lookup(table, &wanted);
    return entry != NULL ? entry->segment : NULL;
}

static void put_segment(LowerCache *cache, GHashTable *table, int scope, const gint32 *key, Segment *segment)
{
    SegmentEntry *entry = g_new0(SegmentEntry, 1);
    entry->key[0] = scope;
    memcpy(entry->key + 1, key, SEGMENT_KEY_WORDS * sizeof(gint32));
    entry->segment = segment_ref(segment);
    g_ptr_array_add(cache->uncounted, segment); /* its instructions are still to come */
    g_hash_table_insert(table, entry, entry);
}

Segment *lower_cache_get(const LowerCache *cache, int scope, const gint32 *key)
{
    return get_segment(cache->segments, scope, key);
}

void lower_cache_put(LowerCache *cache, int scope, const gint32 *key, Segment *segment)
{
    put_segment(cache, cache->segments, scope, key, segment);
}

Segment *lower_cache_get_body(const LowerCache *cache, int scope, const gint32 *key)
{
    return get_segment(cache->bodies, scope, key);
}

void lower_cache_put_body(LowerCache *cache, int scope, const gint32 *key, Segment *body)
{
    put_segment(cache, cache->bodies, scope, key, body);
}
