#include "workloads/lower/cache-stock.h"

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

GArray *cache_items(const Plan *plan, const ModelGraph *graphs)
{
    GArray *items = g_array_new(FALSE, TRUE, sizeof(CacheItem));
    g_autofree guint *first = g_new0(guint, graphs->kinds->len);
    g_autofree guint *count = g_new0(guint, graphs->kinds->len);
    for (int64_t i = 0; i < graphs->n_layers; i++) {
        int kind = graphs->layer_kind[i];
        if (count[kind] > 0) { /* as in the layer of the kind before */
            for (guint k = 0; k < count[kind]; k++) {
                CacheItem item = g_array_index(items, CacheItem, first[kind] + k);
                item.layer = (gint32)i;
                g_array_append_val(items, item);
            }
            continue;
        }
        RowCounts rows = retention_rows(plan, NULL, i);
        first[kind] = items->len;
        add_layer(plan, model_graph_layer(graphs, i), &rows, i, items);
        count[kind] = items->len - first[kind];
    }
    return items;
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

/* First layer of a kind, and how many there are. */
static int64_t first_layer(const ModelGraph *graphs, int kind, int64_t *ret_n)
{
    int64_t found = -1;
    *ret_n = 0;
    for (int64_t i = 0; i < graphs->n_layers; i++) {
        if (graphs->layer_kind[i] == kind) {
            found = found < 0 ? i : found;
            (*ret_n)++;
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
static void fill_kind(Choice *choice, const Plan *plan, const ModelGraph *graphs, int k, double *net_s)
{
    ChoiceKind *kind = &choice->kinds[k];
    int64_t first = first_layer(graphs, k, &kind->n_layers);
    if (first < 0) {
        return;
    }
    const Graph *graph = model_graph_layer(graphs, first);
    RowCounts rows = retention_rows(plan, NULL, first);
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

CacheStock *cache_stock_new(const Plan *plan, const ModelGraph *graphs)
{
    double net_s = 0;
    CacheStock *stock = g_new0(CacheStock, 1);
    Choice *choice = &stock->choice;
    stock->items = cache_items(plan, graphs);
    stock->layer_kind = g_memdup2(graphs->layer_kind, sizeof *graphs->layer_kind * (gsize)graphs->n_layers);
    *choice = (Choice){.link = host_link_of(plan->cluster, FALSE), /* also of copies that yield: trials show what they are worth */
                       .n_kinds = (int)graphs->kinds->len, .layer_kind = stock->layer_kind,
                       .n_layers = graphs->n_layers};
    choice->kinds = g_new0(ChoiceKind, choice->n_kinds + 1);
    for (int k = 0; k < choice->n_kinds; k++) {
        fill_kind(choice, plan, graphs, k, &net_s);
    }
    choice->backward_s += 2 * choice->forward_s; /* twice the forward pass, beside what is made again */
    choice->net_frac = choice->forward_s > 0 ? MIN(1, net_s / choice->forward_s) : 0;
    return stock;
}

void cache_stock_free(CacheStock *stock)
{
    if (stock == NULL) {
        return;
    }
    for (int k = 0; k < stock->choice.n_kinds; k++) {
        if (stock->choice.kinds[k].layer != NULL) {
            cut_layer_free(stock->choice.kinds[k].layer);
            g_array_unref(stock->choice.kinds[k].hull);
        }
    }
    g_free(stock->choice.kinds);
    g_free(stock->layer_kind);
    g_array_unref(stock->items);
    g_free(stock);
}

size_t cache_stock_size_bytes(const CacheStock *stock)
{
    size_t n_bytes = sizeof *stock + stock->items->len * sizeof(CacheItem) + (size_t)stock->choice.n_layers * sizeof(int);
    for (int k = 0; k < stock->choice.n_kinds; k++) {
        const ChoiceKind *kind = &stock->choice.kinds[k];
        size_t n = kind->layer != NULL ? (size_t)kind->layer->n_ops : 0;
        n_bytes += sizeof *kind + n * n + n * (sizeof(int64_t) + sizeof(double) + 2);
        n_bytes += kind->hull != NULL ? kind->hull->len * (sizeof(CutPoint) + n) : 0;
    }
    return n_bytes;
}
