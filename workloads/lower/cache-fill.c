#include "workloads/lower/cache-fill.h"

#include <string.h>

#include "workloads/lower/tier-cache.h"

/* Entries while a policy plays the step. */
typedef struct Play {
    RetentionPlan *tables;
    const ModelGraph *graphs;
    const GArray *items;
    int64_t window;
    TierCache *cache;
    guint8 *before; /* by item: where it was before the layer */
} Play;

static const CacheItem *item_at(const GArray *items, guint i)
{
    return &g_array_index(items, CacheItem, i);
}

/* What has moved of the layers before i while i's entries came: events before i's forward pass. */
static void add_moves(Play *play, int64_t i, guint n_before)
{
    for (guint k = 0; k < n_before;) {
        int64_t layer = item_at(play->items, k)->layer;
        int n_ops = graph_n_ops(model_graph_layer(play->graphs, layer));
        g_autofree guint8 *out = g_new0(guint8, n_ops), *drop = g_new0(guint8, n_ops), *forget = g_new0(guint8, n_ops);
        gboolean outs = FALSE, drops = FALSE, forgets = FALSE;
        for (; k < n_before && item_at(play->items, k)->layer == layer; k++) {
            int was = play->before[k], is = tier_cache_place(play->cache, (int)k), op = item_at(play->items, k)->op;
            outs |= out[op] = was == CACHE_HBM && is == CACHE_DDR;
            drops |= drop[op] = was == CACHE_HBM && is == CACHE_NOWHERE;
            forgets |= forget[op] = was == CACHE_DDR && is == CACHE_NOWHERE;
        }
        gint32 at = retention_before_forward(play->tables, i);
        if (forgets) {
            retention_add_event(play->tables, at, SWAP_FORGET, layer, forget, n_ops);
        }
        if (drops) {
            retention_add_event(play->tables, at, SWAP_DROP, layer, drop, n_ops);
        }
        if (outs) {
            int64_t end = i + play->window;
            gint32 release = end < play->tables->n_layers ? retention_before_forward(play->tables, end)
                                                          : retention_before_head_backward(play->tables);
            retention_add_event(play->tables, at, SWAP_OUT, layer, out, n_ops);
            retention_add_event(play->tables, release, SWAP_RELEASE, layer, out, n_ops);
        }
    }
}

static int keeping_of(int place)
{
    return place == CACHE_HBM ? KEEP_HBM : place == CACHE_DDR ? KEEP_DDR : KEEP_NOT;
}

/* An equal table of this layer or an earlier one of its kind: what a recomputation leaves out is then known. */
static const Retention *known_table(const RetentionPlan *tables, const ModelGraph *graphs, int64_t layer, const guint8 *of_op, int n_ops)
{
    for (int64_t i = layer; i >= 0; i--) {
        for (int k = 0; k < 2 && graphs->layer_kind[i] == graphs->layer_kind[layer]; k++) {
            const Retention *table = k == 0 ? tables->made[i] : tables->found[i];
            if (table != NULL && memcmp(table->of_op, of_op, (size_t)n_ops) == 0) {
                return table;
            }
        }
    }
    return NULL;
}

/* Table of a layer from the places of its items, first … end - 1. */
static const Retention *table_of(RetentionPlan *tables, const ModelGraph *graphs, int64_t layer, const GArray *items, const guint8 *keeping,
                                 guint first, guint end)
{
    const Graph *graph = model_graph_layer(graphs, layer);
    int n_ops = graph_n_ops(graph);
    g_autofree guint8 *of_op = g_new0(guint8, n_ops + 1);
    for (guint k = first; k < end; k++) {
        of_op[item_at(items, k)->op] = keeping[k];
    }
    const Retention *known = known_table(tables, graphs, layer, of_op, n_ops);
    if (known != NULL) {
        return known;
    }
    Retention *table = retention_new(SAVE_SELECTED, n_ops);
    memcpy(table->of_op, of_op, (size_t)n_ops);
    retention_prune(table, graph);
    return retention_plan_share(tables, table);
}

static void play_step(Play *play, CachePolicyKind policy, const Plan *plan, guint8 *ret_made, guint8 *ret_found)
{
    guint n = play->items->len, k = 0;
    play->cache = tier_cache_new(policy, plan->cache_hbm_bytes, plan->cache_ddr_bytes);
    play->before = g_new0(guint8, n);
    for (int64_t i = 0; i < play->tables->n_layers; i++) {
        guint first = k;
        for (; k < n && item_at(play->items, k)->layer == i; k++) {
            const CacheItem *item = item_at(play->items, k);
            CacheEntry entry = {item->bytes, item->cost_s, k, 2 * (int64_t)n - k};
            tier_cache_put(play->cache, &entry);
        }
        add_moves(play, i, first);
        for (guint j = 0; j < k; j++) {
            play->before[j] = (guint8)tier_cache_place(play->cache, (int)j);
            ret_made[j] = (guint8)(j >= first ? keeping_of(play->before[j]) : ret_made[j]);
        }
    }
    for (guint j = 0; j < n; j++) {
        ret_found[j] = (guint8)keeping_of(tier_cache_place(play->cache, (int)j));
    }
    play->tables->counts.evictions = tier_cache_evictions(play->cache);
    tier_cache_free(play->cache);
    g_free(play->before);
}

static void count(CacheCounts *counts, const GArray *items, const guint8 *found)
{
    for (guint k = 0; k < items->len; k++) {
        const CacheItem *item = item_at(items, k);
        counts->n_entries++;
        counts->hbm_hits += found[k] == KEEP_HBM;
        counts->ddr_hits += found[k] == KEEP_DDR;
        counts->misses += found[k] == KEEP_NOT;
        counts->hbm_bytes += found[k] == KEEP_HBM ? item->bytes : 0;
        counts->ddr_bytes += found[k] == KEEP_DDR ? item->bytes : 0;
        *(found[k] == KEEP_NOT ? &counts->miss_bytes : &counts->hit_bytes) += item->bytes;
    }
}

/* What is made again in the end, and what is not, by kinds of layers. */
static void count_runs(CacheCounts *counts, const Choice *choice, const Retention *const *found)
{
    for (int64_t i = 0; i < choice->n_layers; i++) {
        const ChoiceKind *kind = &choice->kinds[choice->layer_kind[i]];
        g_autofree guint8 *keep = g_new0(guint8, kind->layer->n_ops + 1), *runs = g_new0(guint8, kind->layer->n_ops + 1);
        double all = cut_runs(kind->layer, keep, runs);
        for (int o = 0; o < kind->layer->n_ops; o++) {
            keep[o] = found[i]->of_op[o] != KEEP_NOT;
        }
        double now = cut_runs(kind->layer, keep, runs);
        counts->recomputed_s += now;
        counts->saved_s += all - now;
    }
}

static void count_next(CacheCounts *counts, const Plan *plan, const Choice *choice)
{
    const int64_t gib = (int64_t)1 << 30, hbm = plan->cache_hbm_bytes, ddr = plan->cache_ddr_bytes;
    double now = cache_worth(choice, hbm, ddr);
    counts->next_hbm_gib_s = cache_worth(choice, hbm + gib, ddr) - now;
    counts->next_ddr_gib_s = cache_worth(choice, hbm, ddr + gib) - now;
}

void cache_fill(RetentionPlan *tables, const Plan *plan, const ModelGraph *graphs, const CacheStock *stock)
{
    const GArray *items = stock->items;
    g_autofree guint8 *made = g_new0(guint8, items->len + 1), *found = g_new0(guint8, items->len + 1);
    Play play = {.tables = tables, .graphs = graphs, .items = items, .window = plan->cache_window};
    if (plan->cache_policy == CACHE_CHOICE) {
        const CacheBudget budget = {plan->cache_hbm_bytes, plan->cache_ddr_bytes, plan->cache_window};
        cache_choose(&stock->choice, items, &budget, found);
        memcpy(made, found, items->len);
    } else {
        /* events name operators by the tables' graphs, so any table of the layer will do for now */
        for (int64_t i = 0; i < tables->n_layers; i++) {
            tables->made[i] = table_of(tables, graphs, i, items, found, 0, 0);
        }
        play_step(&play, (CachePolicyKind)plan->cache_policy, plan, made, found);
    }
    guint k = 0;
    for (int64_t i = 0; i < tables->n_layers; i++) {
        guint first = k;
        while (k < items->len && item_at(items, k)->layer == i) {
            k++;
        }
        tables->made[i] = table_of(tables, graphs, i, items, made, first, k);
        tables->found[i] = table_of(tables, graphs, i, items, found, first, k);
    }
    for (int64_t i = 0; i < tables->n_layers; i++) {
        retention_add_traffic(tables, i, plan->cache_window);
    }
    count(&tables->counts, items, found);
    count_runs(&tables->counts, &stock->choice, tables->found);
    count_next(&tables->counts, plan, &stock->choice);
}
