#include "workloads/run/tiers.h"

#include "hw/host-link.h"
#include "workloads/lower/lower.h"
#include "workloads/lower/tier-cache.h"
#include "workloads/run/run-cache.h"

static ResultKept *kept_of(GPtrArray *kept, const char *name, const CacheItem *item)
{
    for (guint i = 0; i < kept->len; i++) {
        ResultKept *entry = g_ptr_array_index(kept, i);
        if (g_str_equal(entry->name, name) && entry->bytes == item->bytes) {
            return entry;
        }
    }
    ResultKept *entry = g_new0(ResultKept, 1);
    entry->name = g_strdup(name);
    entry->bytes = item->bytes;
    entry->seconds = item->cost_s;
    g_ptr_array_add(kept, entry);
    return entry;
}

static int by_benefit(gconstpointer a, gconstpointer b)
{
    const ResultKept *x = *(ResultKept *const *)a, *y = *(ResultKept *const *)b;
    double left = x->seconds * (double)y->bytes, right = y->seconds * (double)x->bytes;
    return left > right ? -1 : left < right ? 1 : g_strcmp0(x->name, y->name);
}

/* Operators of every kind of layer, the most seconds per byte first. */
static void fill_kept(const ModelGraph *graphs, const GArray *items, const RetentionPlan *retention, GPtrArray *kept)
{
    for (guint k = 0; k < items->len; k++) {
        const CacheItem *item = &g_array_index(items, CacheItem, k);
        const Graph *graph = model_graph_layer(graphs, item->layer);
        g_autofree char *name = g_strdup(graph_op(graph, item->op)->name);
        ResultKept *entry = kept_of(kept, name, item);
        guint8 keeping = retention->found[item->layer]->of_op[item->op];
        entry->hbm_layers += keeping == KEEP_HBM;
        entry->ddr_layers += keeping == KEEP_DDR;
        entry->recomputed_layers += keeping == KEEP_NOT;
    }
    g_ptr_array_sort(kept, by_benefit);
}

/* Every micro-batch of a step fares alike: seconds are of all of them. */
static void fill_counts(const CacheCounts *counts, int64_t n_micro_batches, ResultTiers *tiers)
{
    const double n = (double)n_micro_batches;
    tiers->entries = counts->n_entries;
    tiers->hbm_hits = counts->hbm_hits;
    tiers->ddr_hits = counts->ddr_hits;
    tiers->misses = counts->misses;
    tiers->evictions = counts->evictions;
    tiers->hit_bytes = counts->hit_bytes;
    tiers->miss_bytes = counts->miss_bytes;
    tiers->hbm_bytes = counts->hbm_bytes;
    tiers->ddr_bytes = counts->ddr_bytes;
    tiers->saved_s = n * counts->saved_s;
    tiers->recomputed_s = n * counts->recomputed_s;
    tiers->next_hbm_gib_s = n * counts->next_hbm_gib_s;
    tiers->next_ddr_gib_s = n * counts->next_ddr_gib_s;
}

static KeptBytes layer_kept_bytes(const Plan *plan, const Graph *graph, const RowCounts *rows)
{
    KeptBytes kept = {.is_known = TRUE};
    g_autofree guint8 *seen = g_new0(guint8, graph->tensors->len + 1);
    for (int o = 0; o < graph_n_ops(graph); o++) {
        guint64 slots;
        gboolean keeps = plan->keep[op_class(graph_op(graph, o)->kind)->keep];
        kept.selected += keeps ? (double)retention_entry(graph, rows, o, &slots) : 0;
        kept.saved += (double)retention_saved_bytes(graph, rows, o, seen);
    }
    return kept;
}

static void kept_bytes(const Plan *plan, const ModelGraph *graphs, const Routing *routing, KeptBytes *ret_kept)
{
    g_autofree KeptBytes *of_kind = g_new0(KeptBytes, graphs->kinds->len);
    *ret_kept = (KeptBytes){.is_known = TRUE};
    for (int64_t i = 0; i < graphs->n_layers; i++) {
        KeptBytes *kept = &of_kind[graphs->layer_kind[i]];
        if (!kept->is_known || routing != NULL) { /* without loads layers of a kind are alike */
            RowCounts rows = retention_rows(plan, routing, i);
            *kept = layer_kept_bytes(plan, model_graph_layer(graphs, i), &rows);
        }
        ret_kept->selected += kept->selected;
        ret_kept->saved += kept->saved;
    }
}

/* Results that no backward reads are kept all the same: with fused kernels or a frozen base that can be more than none keeps. */
static void warn_selective(RunCache *cache, const Plan *plan, const ModelGraph *graphs, const Routing *routing, Result *result)
{
    KeptBytes own = {0};
    if (plan->recompute != PLAN_RECOMPUTE_SELECTIVE || plan->has_cache) {
        return;
    }
    KeptBytes *kept = routing == NULL ? run_cache_kept(cache, plan) : &own;
    if (!kept->is_known) {
        kept_bytes(plan, graphs, routing, kept);
    }
    if (kept->selected > kept->saved) {
        g_autofree char *more = quantity_format_bytes((int64_t)kept->selected), *less = quantity_format_bytes((int64_t)kept->saved);
        g_ptr_array_add(result->warnings,
                        g_strdup_printf("memory.recompute \"selective\" keeps %s of results, \"none\" would keep %s: name fewer operators in "
                                        "memory.keep, or give memory.cache budgets, which keep only what pays",
                                        more, less));
    }
}

/* A fraction so small, or tensors so large, that it is the plan without it. */
static void warn_unmoved(RunCache *cache, const Plan *plan, const ModelGraph *graphs, Result *result)
{
    if (plan->offload_fraction > 0 && !lower_cache_retention(cache->lowered, plan, graphs)->has_ddr) {
        g_autofree char *least = quantity_format_bytes(plan->offload_min_bytes);
        g_ptr_array_add(result->warnings, g_strdup_printf("memory.offload_fraction %g moves nothing: one in every 1/fraction saved tensors of "
                                                          "memory.offload_min_bytes (%s) or more moves, and there are fewer",
                                                          plan->offload_fraction, least));
    }
}

/*
 * What counts of pinned host memory. Where all of a super-node's DDR serves every GPU of it, that is the mean over ranks: bytes go
 * with rows, so it is what a rank with even loads has.
 */
static int64_t counted_host_bytes(const Plan *plan, const ModelGraph *graphs, const Routing *routing, const HostLink *link, int64_t worst)
{
    Ledger even;
    if (!link->pooled || routing == NULL || worst == 0) {
        return worst;
    }
    g_autoptr(Program) program = lower_plan(plan, graphs, NULL, 0);
    return ledger_run(program, 0, &even, NULL) ? even.host_peak_bytes : worst;
}

void tiers_fill(RunCache *cache, const Plan *plan, const ModelGraph *graphs, const Routing *routing, const Ledger *ledger,
                const StepTimes *times, Result *result)
{
    HostLink link = host_link_of(plan->cluster, plan->copies_yield);
    int64_t host = ledger->host_peak_bytes, counted = counted_host_bytes(plan, graphs, routing, &link, host);
    warn_selective(cache, plan, graphs, routing, result);
    warn_unmoved(cache, plan, graphs, result);
    if (!plan->has_cache && host == 0) {
        return;
    }
    ResultTiers *tiers = result->tiers;
    tiers->moved_out_bytes = times->moved_bytes[LABEL_SWAP_OUT];
    tiers->moved_in_bytes = times->moved_bytes[LABEL_SWAP_IN];
    tiers->stall_s = (double)times->exposed_copy_ns * 1e-9;
    tiers->host_peak_bytes = host;
    tiers->host_mean_bytes = counted;
    tiers->host_capacity_bytes = link.bytes;
    if (plan->has_cache) {
        const RetentionPlan *retention = lower_cache_retention(cache->lowered, plan, graphs);
        tiers->policy = g_strdup(plan->cache_policy == CACHE_CHOICE ? "choice" : cache_policy((CachePolicyKind)plan->cache_policy)->id);
        fill_counts(&retention->counts, plan->n_micro_batches, tiers);
        fill_kept(graphs, lower_cache_stock(cache->lowered, plan, graphs)->items, retention, tiers->kept);
    }
    if (link.bytes > 0 && counted > link.bytes) {
        g_autofree char *needed = quantity_format_bytes(counted), *there = quantity_format_bytes(link.bytes);
        result->fits = FALSE;
        g_ptr_array_add(result->advice, g_strdup_printf("%s of pinned host memory per GPU is more than its %s; lower memory.cache.ddr_bytes "
                                                        "or memory.offload_fraction, or leave optimizer.offload out",
                                                        needed, there));
    }
}
