#include "workloads/lower/cache-choice.h"

#include <string.h>

#include "hw/host-link.h"

/* Branches after which the best found so far is taken: far more than the few kinds of a model need. */
enum { BRANCHES_MAX = 20000, BISECTIONS = 20 };

/* Kinds in the order of worth per byte; of equals, the earlier. */
typedef struct Search {
    const KnapsackKind *kinds;
    const int *order;
    int n_kinds;
    int64_t *now, *best; /* by place in the order */
    double best_worth;
    int64_t steps_left;
    gboolean limited;
} Search;

/* Most that kinds from `at` on could still be worth in that room: filled up in order, the last one cut. */
static double fractional_bound(const Search *search, int at, int64_t room)
{
    double worth = 0;
    for (int i = at; i < search->n_kinds && room > 0; i++) {
        const KnapsackKind *kind = &search->kinds[search->order[i]];
        int64_t n = MIN(kind->n, room / kind->bytes);
        worth += (double)n * kind->worth;
        room -= n * kind->bytes;
        if (n < kind->n) {
            return worth + kind->worth * (double)room / (double)kind->bytes;
        }
    }
    return worth;
}

static void branch(Search *search, int at, int64_t room, double worth)
{
    if (worth > search->best_worth) {
        search->best_worth = worth;
        memcpy(search->best, search->now, (size_t)search->n_kinds * sizeof *search->now);
    }
    if (at == search->n_kinds || (search->limited && search->steps_left-- <= 0)) {
        return;
    }
    const KnapsackKind *kind = &search->kinds[search->order[at]];
    for (int64_t n = MIN(kind->n, room / kind->bytes); n >= 0; n--) {
        double bound = worth + (double)n * kind->worth + fractional_bound(search, at + 1, room - n * kind->bytes);
        if (bound <= search->best_worth * (1 + 1e-12)) {
            break; /* fewer of the densest kind left bound it the more */
        }
        search->now[at] = n;
        branch(search, at + 1, room - n * kind->bytes, worth + (double)n * kind->worth);
        search->now[at] = 0;
    }
}

double cache_knapsack(const KnapsackKind *kinds, int n_kinds, int64_t budget, int64_t n_steps, int64_t *ret_n)
{
    g_autofree int *order = g_new(int, n_kinds + 1);
    g_autofree int64_t *now = g_new0(int64_t, n_kinds + 1), *best = g_new0(int64_t, n_kinds + 1);
    for (int i = 0; i < n_kinds; i++) {
        int at = i;
        for (; at > 0; at--) {
            const KnapsackKind *before = &kinds[order[at - 1]], *one = &kinds[i];
            if (before->worth * (double)one->bytes >= one->worth * (double)before->bytes) {
                break;
            }
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    Search search = {.kinds = kinds, .order = order, .n_kinds = n_kinds, .now = now, .best = best, .steps_left = n_steps, .limited = n_steps > 0};
    branch(&search, 0, MAX(budget, 0), 0);
    memset(ret_n, 0, (size_t)n_kinds * sizeof *ret_n);
    for (int i = 0; i < n_kinds; i++) {
        ret_n[order[i]] = best[i];
    }
    return search.best_worth;
}

/* Items sorted into kinds. */
typedef struct Kinds {
    GArray *kinds;   /* KnapsackKind */
    int *of_item;
} Kinds;

static gboolean same_kind(const KnapsackKind *kind, const CacheItem *item)
{
    return kind->bytes == item->bytes && !(kind->worth < item->cost_s) && !(kind->worth > item->cost_s);
}

static Kinds sort_into_kinds(const GArray *items)
{
    Kinds sorted = {g_array_new(FALSE, TRUE, sizeof(KnapsackKind)), g_new(int, items->len + 1)};
    for (guint k = 0; k < items->len; k++) {
        const CacheItem *item = &g_array_index(items, CacheItem, k);
        guint i = 0;
        while (i < sorted.kinds->len && !same_kind(&g_array_index(sorted.kinds, KnapsackKind, i), item)) {
            i++;
        }
        if (i == sorted.kinds->len) {
            KnapsackKind kind = {item->bytes, 0, item->cost_s};
            g_array_append_val(sorted.kinds, kind);
        }
        g_array_index(sorted.kinds, KnapsackKind, i).n++;
        sorted.of_item[k] = (int)i;
    }
    return sorted;
}

/* Bytes that the link carries beside a pass of that time, one way. */
static double link_bytes(const Plan *plan, double seconds)
{
    HostLink link = host_link_of(plan->cluster);
    return link.bytes_per_s * link.alone_rate * link.net_rate * MAX(seconds, 0);
}

/* Budgets, and the times of the passes that hide the link. */
typedef struct Budgets {
    int64_t hbm_bytes, ddr_bytes;
    double forward_s, backward_s;
} Budgets;

/* Most bytes in DDR that cost no time: more of them shorten the backward pass that must hide them. Returns what is saved. */
static double fill_up(const Plan *plan, const GArray *kinds, const Budgets *budgets, int64_t *ret_ddr, int64_t *ret_n)
{
    const KnapsackKind *data = (const KnapsackKind *)(const void *)kinds->data;
    int n_kinds = (int)kinds->len;
    double low = 0, high = MIN((double)budgets->ddr_bytes, link_bytes(plan, budgets->forward_s));
    for (int i = 0; i < BISECTIONS && low < high; i++) {
        double middle = i == 0 ? high : (low + high) / 2;
        double saved = cache_knapsack(data, n_kinds, budgets->hbm_bytes + (int64_t)middle, BRANCHES_MAX, ret_n);
        if (middle <= link_bytes(plan, budgets->backward_s - saved)) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *ret_ddr = (int64_t)low;
    return cache_knapsack(data, n_kinds, budgets->hbm_bytes + *ret_ddr, BRANCHES_MAX, ret_n);
}

/*
 * Layer by layer, as much to DDR as the link can have carried by then, but no more than asked for; the rest stays in HBM
 * while there is room. An entry that fits in neither is not kept.
 */
static void place_items(const Plan *plan, const GArray *items, int64_t n_layers, double rate, int64_t ddr, guint8 *place)
{
    int64_t in_ddr = 0, in_hbm = 0;
    for (guint k = 0; k < items->len; k++) {
        const CacheItem *item = &g_array_index(items, CacheItem, k);
        double carried = rate * (double)(item->layer + 1 + plan->cache_window) / (double)n_layers;
        /* the last layers' would come back at once */
        gboolean can_leave = item->layer + plan->cache_window < n_layers && (double)(in_ddr + item->bytes) <= carried;
        if (place[k] == KEEP_NOT) {
            continue;
        }
        if (can_leave && in_ddr + item->bytes <= ddr) {
            place[k] = KEEP_DDR;
            in_ddr += item->bytes;
        } else if (in_hbm + item->bytes <= plan->cache_hbm_bytes) {
            place[k] = KEEP_HBM;
            in_hbm += item->bytes;
        } else {
            place[k] = KEEP_NOT;
        }
    }
}

void cache_choose(const Plan *plan, const GArray *items, int64_t n_layers, double forward_s, double backward_s, guint8 *ret_place)
{
    Kinds kinds = sort_into_kinds(items);
    g_autofree int64_t *n = g_new0(int64_t, kinds.kinds->len + 1);
    const Budgets budgets = {plan->cache_hbm_bytes, plan->cache_ddr_bytes, forward_s, backward_s};
    int64_t ddr;
    fill_up(plan, kinds.kinds, &budgets, &ddr, n);
    for (guint k = 0; k < items->len; k++) {
        int64_t *left = &n[kinds.of_item[k]];
        ret_place[k] = *left > 0 ? KEEP_HBM : KEEP_NOT;
        *left -= *left > 0;
    }
    place_items(plan, items, n_layers, link_bytes(plan, forward_s), ddr, ret_place);
    g_array_unref(kinds.kinds);
    g_free(kinds.of_item);
}

double cache_worth(const Plan *plan, const GArray *items, double forward_s, double backward_s, int64_t hbm_bytes, int64_t ddr_bytes)
{
    Kinds kinds = sort_into_kinds(items);
    g_autofree int64_t *n = g_new0(int64_t, kinds.kinds->len + 1);
    const Budgets budgets = {hbm_bytes, ddr_bytes, forward_s, backward_s};
    int64_t ddr;
    double saved = fill_up(plan, kinds.kinds, &budgets, &ddr, n);
    g_array_unref(kinds.kinds);
    g_free(kinds.of_item);
    return saved;
}
