#include "workloads/run/cache-needs.h"

#include <string.h>

#include "hw/host-link.h"
#include "workloads/run/groups.h"
#include "workloads/run/run-cache.h"

/* An entry that takes more where more rows are: `row` of the table; else -1. */
typedef struct Need {
    int64_t even_bytes;
    int row;
} Need;

struct CacheNeeds {
    Need *entries;
    guint n_entries;
    gsize n_ranks;   /* of all sampled groups */
    int64_t *table;  /* [rows][n_ranks]: bytes */
    int64_t *sums;   /* [2][n_ranks]: scratch */
    gboolean pooled; /* DDR of all ranks is one */
};

static const CacheItem *item_at(const CacheStock *stock, guint i)
{
    return &g_array_index(stock->items, CacheItem, i);
}

/* Whether an entry's size goes with the rows that routing gives a rank. */
static gboolean goes_with_rows(const Plan *plan, const Graph *graph, const RowCounts *even, const CacheItem *item)
{
    static const RowSpace routed[] = {ROWS_SLOTS, ROWS_RECEIVED, ROWS_ARRIVED};
    RowCounts more = *even;
    guint64 slots;
    for (size_t i = 0; i < G_N_ELEMENTS(routed); i++) {
        for (int c = 0; c <= plan->moe.overlap_chunks; c++) {
            RowSpace space = row_space_of_chunk(routed[i], c);
            more.rows[space] = 2 * even->rows[space] + 1024;
        }
    }
    return retention_entry(graph, &more, item->op, &slots) != retention_entry(graph, even, item->op, &slots);
}

/* Entries of a layer, first ... end - 1: bytes on every rank. */
static void fill_layer(CacheNeeds *needs, const Plan *plan, const Graph *graph, const CacheStock *stock, const GPtrArray *routings, guint first,
                       guint end)
{
    int64_t moe_layer = plan_moe_layer(plan, item_at(stock, first)->layer);
    for (gsize r = 0; moe_layer >= 0 && r < needs->n_ranks; r++) {
        const Routing *routing = g_ptr_array_index(routings, r / (gsize)plan->ep);
        RowCounts rows = routing_row_counts(plan, routing, moe_layer, (int64_t)r % plan->ep);
        for (guint k = first; k < end; k++) {
            guint64 slots;
            if (needs->entries[k].row >= 0) {
                needs->table[(gsize)needs->entries[k].row * needs->n_ranks + r] = retention_entry(graph, &rows, item_at(stock, k)->op, &slots);
            }
        }
    }
}

CacheNeeds *cache_needs_new(const Plan *plan, const ModelGraph *graphs, const CacheStock *stock, const GPtrArray *routings)
{
    CacheNeeds *needs = g_new0(CacheNeeds, 1);
    guint n = stock->items->len;
    gsize n_rows = 0;
    needs->n_entries = n;
    needs->entries = g_new0(Need, n + 1);
    needs->n_ranks = (gsize)routings->len * (gsize)plan->ep;
    needs->pooled = host_link_of(plan->cluster, FALSE).pooled;
    RowCounts even = {0};
    for (guint k = 0; k < n; k++) {
        const CacheItem *item = item_at(stock, k);
        gboolean is_routed = needs->n_ranks > 0 && plan_moe_layer(plan, item->layer) >= 0;
        if (is_routed && (k == 0 || item_at(stock, k - 1)->layer != item->layer)) {
            even = retention_rows(plan, NULL, item->layer);
        }
        gboolean varies = is_routed && goes_with_rows(plan, model_graph_layer(graphs, item->layer), &even, item);
        needs->entries[k] = (Need){item->bytes, varies ? (int)n_rows++ : -1};
    }
    needs->table = g_new0(int64_t, n_rows * needs->n_ranks + 1);
    needs->sums = g_new0(int64_t, 2 * needs->n_ranks + 1);
    for (guint first = 0, end; first < n && needs->n_ranks > 0; first = end) {
        for (end = first; end < n && item_at(stock, end)->layer == item_at(stock, first)->layer; end++) {
        }
        fill_layer(needs, plan, model_graph_layer(graphs, item_at(stock, first)->layer), stock, routings, first, end);
    }
    return needs;
}

void cache_needs_free(CacheNeeds *needs)
{
    if (needs != NULL) {
        g_free(needs->entries);
        g_free(needs->table);
        g_free(needs->sums);
        g_free(needs);
    }
}

void cache_needs_of(CacheNeeds *needs, const guint8 *place, int64_t *ret_hbm_bytes, int64_t *ret_ddr_bytes)
{
    gsize n = needs->n_ranks;
    int64_t fixed[2] = {0, 0}, even[2] = {0, 0}, most[2] = {0, 0};
    memset(needs->sums, 0, 2 * n * sizeof *needs->sums);
    for (guint k = 0; k < needs->n_entries; k++) {
        int tier = place[k] == KEEP_DDR;
        const Need *need = &needs->entries[k];
        if (place[k] == KEEP_NOT) {
            continue;
        }
        even[tier] += need->even_bytes;
        fixed[tier] += need->row < 0 ? need->even_bytes : 0;
        for (gsize r = 0; need->row >= 0 && r < n; r++) {
            needs->sums[(gsize)tier * n + r] += needs->table[(gsize)need->row * n + r];
        }
    }
    for (gsize r = 0; r < 2 * n; r++) {
        most[r / n] = MAX(most[r / n], needs->sums[r]);
    }
    *ret_hbm_bytes = n > 0 ? fixed[0] + most[0] : even[0];
    *ret_ddr_bytes = n > 0 && !needs->pooled ? fixed[1] + most[1] : even[1];
}

gboolean cache_held(RunCache *cache, const Plan *plan, int64_t *ret_hbm_bytes, int64_t *ret_ddr_bytes, GError **error)
{
    g_autoptr(GPtrArray) routings = run_groups_routings(cache, plan, error);
    if (routings == NULL) {
        return FALSE;
    }
    const ModelGraph *graphs = lower_cache_graphs(cache->lowered, plan);
    const CacheStock *stock = lower_cache_stock(cache->lowered, plan, graphs);
    const RetentionPlan *retention = lower_cache_retention(cache->lowered, plan, graphs);
    g_autoptr(CacheNeeds) needs = cache_needs_new(plan, graphs, stock, routings);
    g_autofree guint8 *place = g_new0(guint8, stock->items->len + 1);
    for (guint k = 0; k < stock->items->len; k++) {
        place[k] = retention->found[item_at(stock, k)->layer]->of_op[item_at(stock, k)->op];
    }
    cache_needs_of(needs, place, ret_hbm_bytes, ret_ddr_bytes);
    return TRUE;
}
