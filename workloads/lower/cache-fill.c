#include "workloads/lower/cache-fill.h"

#include <string.h>

#include "workloads/lower/cache-choice.h"
#include "workloads/lower/emit.h"
#include "workloads/lower/fsdp.h"

/* One exchange of the rows that an operator sends, and of the counts before it. */
static SimTime exchange_ns(const Plan *plan, const OpView *view)
{
    const Model *model = plan->model;
    CollGroup group = cluster_group(plan->cluster, 0, 1, plan->ep);
    int64_t row = dtype_bytes(plan->compute, model->latent_width > 0 ? model->latent_width : model->hidden);
    int64_t slots = MAX(op_rows(view, ROWS_SLOTS), op_rows(view, ROWS_RECEIVED)), self = slots / plan->ep;
    int64_t inside = self * (group.per_domain - 1);
    return coll_all_to_all_ns(plan->cluster, &group, inside * row, (slots - self - inside) * row, self * row, NULL) +
           (view->op->chunk <= 1 ? coll_ns(plan->cluster, COLL_all_to_all, &group, model->n_experts * 8, NULL) : 0);
}

double cache_op_seconds(const Plan *plan, const Graph *graph, const RowCounts *rows, int op)
{
    const Device *device = plan->cluster->device;
    OpView view = {graph, graph_op(graph, op), rows};
    const OpClass *class = op_class(view.op->kind);
    OpCost cost = {0};
    SimTime ns = 0;
    class->forward_cost(&view, &cost);
    for (int i = 0; i < cost.n_works; i++) {
        Price price = price_list_get(NULL, device, &cost.works[i]);
        ns += (price.one_ns[CLOCK_USUAL] + device->kernel_gap_ns) * cost.works[i].n_launches;
    }
    ns += cost.n_host_syncs * device->host_sync_ns;
    if (class->collective == OP_COLLECTIVE_ALL_TO_ALL && plan->ep > 1) {
        ns += exchange_ns(plan, &view);
    }
    return (double)ns * 1e-9;
}

static gboolean may_keep(const Plan *plan, const Graph *graph, int op)
{
    OpKeep keep = op_class(graph_op(graph, op)->kind)->keep;
    return !plan->cache_has_keep || (keep != OP_KEEP_NONE && plan->keep[keep]);
}

static void add_layer(const Plan *plan, const Graph *graph, const RowCounts *rows, int64_t layer, GArray *items)
{
    int end = retention_recompute_end(graph, rows);
    for (int o = 0; o < end; o++) {
        guint64 slots;
        CacheItem item = {.layer = (gint32)layer, .op = o, .bytes = retention_entry(graph, rows, o, &slots)};
        if (item.bytes > 0 && may_keep(plan, graph, o)) {
            item.cost_s = cache_op_seconds(plan, graph, rows, o);
            if (item.cost_s > 0) {
                g_array_append_val(items, item);
            }
        }
    }
}

GArray *cache_items(const Plan *plan, const ModelGraph *graphs, const Routing *routing)
{
    GArray *items = g_array_new(FALSE, TRUE, sizeof(CacheItem));
    g_autofree guint *first = g_new0(guint, graphs->kinds->len);
    g_autofree guint *count = g_new0(guint, graphs->kinds->len);
    for (int64_t i = 0; i < graphs->n_layers; i++) {
        int kind = graphs->layer_kind[i];
        if (routing == NULL && count[kind] > 0) { /* as in the layer of the kind before */
            for (guint k = 0; k < count[kind]; k++) {
                CacheItem item = g_array_index(items, CacheItem, first[kind] + k);
                item.layer = (gint32)i;
                g_array_append_val(items, item);
            }
            continue;
        }
        RowCounts rows = retention_rows(plan, routing, i);
        first[kind] = items->len;
        add_layer(plan, model_graph_layer(graphs, i), &rows, i, items);
        count[kind] = items->len - first[kind];
    }
    return items;
}

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

/* Table of a layer from the places of its items, first … end - 1. */
static const Retention *table_of(RetentionPlan *tables, const Graph *graph, const GArray *items, const guint8 *keeping, guint first, guint end)
{
    Retention *table = retention_new(SAVE_SELECTED, graph_n_ops(graph));
    for (guint k = first; k < end; k++) {
        table->of_op[item_at(items, k)->op] = keeping[k];
    }
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

/* Seconds of a layer with nothing kept. */
static double corner_seconds(const ChoiceKind *kind)
{
    return g_array_index(kind->hull, CutPoint, 0).seconds;
}

/* Groups of a layer's parameters, priced; free with fsdp_group_free. */
static void layer_groups(const Plan *plan, const Graph *graph, FsdpGroup **ret_dense, FsdpGroup **ret_experts)
{
    *ret_dense = fsdp_group_new(plan, GROUP_DENSE);
    *ret_experts = fsdp_group_new(plan, GROUP_EXPERT);
    fsdp_group_add(*ret_dense, plan, graph, PARAM_DENSE, NULL);
    fsdp_group_add(plan->ep > 1 ? *ret_experts : *ret_dense, plan, graph, PARAM_EXPERT, NULL);
    fsdp_group_price(*ret_dense, plan);
    fsdp_group_price(*ret_experts, plan);
}

/* Layer of a kind whose experts get most rows. */
static int64_t heaviest_layer(const Plan *plan, const ModelGraph *graphs, const Routing *routing, int kind, int64_t *ret_n)
{
    int64_t found = -1, most = -1;
    *ret_n = 0;
    for (int64_t i = 0; i < graphs->n_layers; i++) {
        if (graphs->layer_kind[i] != kind) {
            continue;
        }
        (*ret_n)++;
        if (found < 0 || routing != NULL) {
            RowCounts rows = retention_rows(plan, routing, i);
            found = rows.rows[ROWS_RECEIVED] > most ? i : found;
            most = MAX(most, rows.rows[ROWS_RECEIVED]);
        }
    }
    return found;
}

static gboolean leaves_domain(const Plan *plan, int64_t stride, int64_t n)
{
    CollGroup group = cluster_group(plan->cluster, 0, stride, n);
    return group.per_domain < group.n_ranks;
}

/* One kind: what its operators cost, and the times of its forward pass and of the network in it. */
static void fill_kind(Choice *choice, const ModelGraph *graphs, const Routing *routing, int k, double *net_s)
{
    const Plan *plan = choice->plan;
    ChoiceKind *kind = &choice->kinds[k];
    int64_t heaviest = heaviest_layer(plan, graphs, routing, k, &kind->n_layers);
    if (heaviest < 0) {
        return;
    }
    const Graph *graph = model_graph_layer(graphs, heaviest);
    RowCounts rows = retention_rows(plan, routing, heaviest);
    FsdpGroup *dense, *experts;
    double forward = 0, exchange = 0, gather;
    layer_groups(plan, graph, &dense, &experts);
    kind->layer = cut_layer_new(graph, &rows);
    for (int o = 0; o < kind->layer->n_ops; o++) {
        guint64 slots;
        gboolean exchanges = op_class(graph_op(graph, o)->kind)->collective == OP_COLLECTIVE_ALL_TO_ALL && plan->ep > 1;
        kind->layer->bytes[o] = may_keep(plan, graph, o) ? retention_entry(graph, &rows, o, &slots) : 0;
        kind->layer->seconds[o] = cache_op_seconds(plan, graph, &rows, o);
        kind->layer->experts[o] = plan->ep > 1 && kind->layer->experts[o];
        forward += kind->layer->seconds[o];
        exchange += exchanges && leaves_domain(plan, 1, plan->ep) ? kind->layer->seconds[o] : 0;
    }
    kind->layer->gather_seconds = plan->reshard_after_forward ? (double)experts->gather.ns * 1e-9 : 0;
    kind->hull = cut_hull(kind->layer);
    gather = (double)dense->gather.ns * 1e-9 * leaves_domain(plan, 1, plan->dp_shard) +
             (double)experts->gather.ns * 1e-9 * leaves_domain(plan, plan->ep, plan->efsdp);
    *net_s += (double)kind->n_layers * (gather + exchange);
    choice->forward_s += (double)kind->n_layers * MAX(forward, (double)(dense->gather.ns + experts->gather.ns) * 1e-9);
    choice->backward_s += (double)kind->n_layers * corner_seconds(kind);
    fsdp_group_free(dense);
    fsdp_group_free(experts);
}

static void choice_init(Choice *choice, const Plan *plan, const ModelGraph *graphs, const Routing *routing)
{
    double net_s = 0;
    *choice = (Choice){.plan = plan, .n_kinds = (int)graphs->kinds->len, .layer_kind = graphs->layer_kind, .n_layers = graphs->n_layers};
    choice->kinds = g_new0(ChoiceKind, choice->n_kinds + 1);
    for (int k = 0; k < choice->n_kinds; k++) {
        fill_kind(choice, graphs, routing, k, &net_s);
    }
    choice->backward_s += 2 * choice->forward_s; /* twice the forward pass, beside what is made again */
    choice->net_frac = choice->forward_s > 0 ? MIN(1, net_s / choice->forward_s) : 0;
}

static void choice_clear(Choice *choice)
{
    for (int k = 0; k < choice->n_kinds; k++) {
        if (choice->kinds[k].layer != NULL) {
            cut_layer_free(choice->kinds[k].layer);
            g_array_unref(choice->kinds[k].hull);
        }
    }
    g_free(choice->kinds);
}

static void count_next(CacheCounts *counts, const Choice *choice)
{
    const int64_t gib = (int64_t)1 << 30, hbm = choice->plan->cache_hbm_bytes, ddr = choice->plan->cache_ddr_bytes;
    double now = cache_worth(choice, hbm, ddr);
    counts->next_hbm_gib_s = cache_worth(choice, hbm + gib, ddr) - now;
    counts->next_ddr_gib_s = cache_worth(choice, hbm, ddr + gib) - now;
}

void cache_fill(RetentionPlan *tables, const Plan *plan, const ModelGraph *graphs, const Routing *routing)
{
    g_autoptr(GArray) items = cache_items(plan, graphs, routing);
    g_autofree guint8 *made = g_new0(guint8, items->len + 1), *found = g_new0(guint8, items->len + 1);
    Play play = {.tables = tables, .graphs = graphs, .items = items, .window = plan->cache_window};
    Choice choice;
    choice_init(&choice, plan, graphs, routing);
    if (plan->cache_policy == CACHE_CHOICE) {
        cache_choose(&choice, items, found);
        memcpy(made, found, items->len);
    } else {
        /* events name operators by the tables' graphs, so any table of the layer will do for now */
        for (int64_t i = 0; i < tables->n_layers; i++) {
            tables->made[i] = table_of(tables, model_graph_layer(graphs, i), items, found, 0, 0);
        }
        play_step(&play, (CachePolicyKind)plan->cache_policy, plan, made, found);
    }
    guint k = 0;
    for (int64_t i = 0; i < tables->n_layers; i++) {
        guint first = k;
        while (k < items->len && item_at(items, k)->layer == i) {
            k++;
        }
        tables->made[i] = table_of(tables, model_graph_layer(graphs, i), items, made, first, k);
        tables->found[i] = table_of(tables, model_graph_layer(graphs, i), items, found, first, k);
    }
    for (int64_t i = 0; i < tables->n_layers; i++) {
        retention_add_traffic(tables, i, plan->cache_window);
    }
    count(&tables->counts, items, found);
    count_runs(&tables->counts, &choice, tables->found);
    count_next(&tables->counts, &choice);
    choice_clear(&choice);
}
