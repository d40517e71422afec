#include "workloads/lower/cache-choice.h"

#include <string.h>

enum { BISECTIONS = 24 };

/* From one corner of a kind's hull to the next. */
typedef struct Rise {
    int kind, corner, slot; /* slot: place of the corner among all */
    int64_t bytes;
    double seconds;
} Rise;

static const CutPoint *corner_at(const ChoiceKind *kind, int corner)
{
    return &g_array_index(kind->hull, CutPoint, corner);
}

static int by_density(gconstpointer a, gconstpointer b)
{
    const Rise *x = a, *y = b;
    double left = x->seconds * (double)y->bytes, right = y->seconds * (double)x->bytes;
    return left > right ? -1 : left < right ? 1 : x->slot - y->slot;
}

static GArray *rises(const Choice *choice, int *ret_n_slots)
{
    GArray *all = g_array_new(FALSE, TRUE, sizeof(Rise));
    int slot = 0;
    for (int k = 0; k < choice->n_kinds; k++) {
        const ChoiceKind *kind = &choice->kinds[k];
        for (int c = 0; kind->hull != NULL && c < (int)kind->hull->len; c++, slot++) {
            if (c > 0) {
                Rise rise = {k, c, slot, corner_at(kind, c)->bytes - corner_at(kind, c - 1)->bytes,
                             corner_at(kind, c - 1)->seconds - corner_at(kind, c)->seconds};
                g_array_append_val(all, rise);
            }
        }
    }
    g_array_sort(all, by_density);
    *ret_n_slots = slot;
    return all;
}

double choice_fill(const Choice *choice, int64_t budget, int64_t *ret_counts)
{
    int n_slots;
    g_autoptr(GArray) all = rises(choice, &n_slots);
    double saved = 0;
    memset(ret_counts, 0, sizeof *ret_counts * (size_t)n_slots);
    for (guint i = 0; i < all->len; i++) {
        const Rise *rise = &g_array_index(all, Rise, i);
        int64_t below = rise->corner > 1 ? ret_counts[rise->slot - 1] : choice->kinds[rise->kind].n_layers;
        int64_t n = MIN(below, budget / MAX(rise->bytes, 1));
        ret_counts[rise->slot] = n;
        budget -= n * rise->bytes;
        saved += (double)n * rise->seconds;
    }
    return saved;
}

static int n_slots_of(const Choice *choice)
{
    int n = 0;
    for (int k = 0; k < choice->n_kinds; k++) {
        n += choice->kinds[k].hull != NULL ? (int)choice->kinds[k].hull->len : 0;
    }
    return n;
}

/* Bytes that the link carries beside a pass of that time, one way. */
static double link_bytes(const Choice *choice, double seconds)
{
    const HostLink *link = &choice->link;
    double beside_net = 1 - choice->net_frac * (1 - link->net_rate);
    return link->bytes_per_s * link->alone_rate * beside_net * MAX(seconds, 0);
}

/* Most bytes in DDR that cost no time: more of them shorten the backward pass that must hide them. Returns what is saved. */
static double fill_up(const Choice *choice, int64_t hbm_bytes, int64_t ddr_bytes, int64_t *ret_ddr, int64_t *ret_counts)
{
    double low = 0, high = MIN((double)ddr_bytes, link_bytes(choice, choice->forward_s));
    for (int i = 0; i < BISECTIONS && low < high; i++) {
        double middle = i == 0 ? high : (low + high) / 2;
        double saved = choice_fill(choice, hbm_bytes + (int64_t)middle, ret_counts);
        if (middle <= link_bytes(choice, choice->backward_s - saved)) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *ret_ddr = (int64_t)low;
    return choice_fill(choice, hbm_bytes + *ret_ddr, ret_counts);
}

int64_t cache_most_kept(const Choice *choice)
{
    int64_t bytes = 0;
    for (int k = 0; k < choice->n_kinds; k++) {
        const ChoiceKind *kind = &choice->kinds[k];
        bytes += kind->hull != NULL ? kind->n_layers * corner_at(kind, (int)kind->hull->len - 1)->bytes : 0;
    }
    return bytes;
}

int64_t cache_most_ddr(const Choice *choice)
{
    return (int64_t)link_bytes(choice, choice->forward_s);
}

double cache_worth(const Choice *choice, int64_t hbm_bytes, int64_t ddr_bytes)
{
    g_autofree int64_t *counts = g_new0(int64_t, n_slots_of(choice) + 1);
    int64_t ddr;
    return fill_up(choice, hbm_bytes, ddr_bytes, &ddr, counts);
}

/* The set of each layer: of a kind the first layers are at the highest corners. */
static void assign_layers(const Choice *choice, const int64_t *counts, const CutPoint **ret_sets)
{
    g_autofree int64_t *seen = g_new0(int64_t, choice->n_kinds);
    for (int64_t i = 0; i < choice->n_layers; i++) {
        int k = choice->layer_kind[i], slot = 0, corner = 0;
        for (int before = 0; before < k; before++) {
            slot += choice->kinds[before].hull != NULL ? (int)choice->kinds[before].hull->len : 0;
        }
        while (corner + 1 < (int)choice->kinds[k].hull->len && counts[slot + corner + 1] > seen[k]) {
            corner++;
        }
        ret_sets[i] = corner_at(&choice->kinds[k], corner);
        seen[k]++;
    }
}

/*
 * Layer by layer, as much to DDR as the link can have carried by then, but no more than asked for; the rest stays in HBM
 * while there is room. An entry that fits in neither is not kept.
 */
static void place_items(const Choice *choice, const GArray *items, const CutPoint *const *sets, const CacheBudget *budget, guint8 *ret_place)
{
    double rate = link_bytes(choice, choice->forward_s) / (double)choice->n_layers;
    int64_t in_ddr = 0, in_hbm = 0;
    for (guint k = 0; k < items->len; k++) {
        const CacheItem *item = &g_array_index(items, CacheItem, k);
        double carried = rate * (double)(item->layer + 1 + budget->window);
        /* the last layers' would come back at once */
        gboolean can_leave = item->layer + budget->window < choice->n_layers && (double)(in_ddr + item->bytes) <= carried;
        ret_place[k] = KEEP_NOT;
        if (!sets[item->layer]->keep[item->op]) {
            continue;
        }
        if (can_leave && in_ddr + item->bytes <= budget->ddr_bytes) {
            ret_place[k] = KEEP_DDR;
            in_ddr += item->bytes;
        } else if (in_hbm + item->bytes <= budget->hbm_bytes) {
            ret_place[k] = KEEP_HBM;
            in_hbm += item->bytes;
        }
    }
}

void cache_choose(const Choice *choice, const GArray *items, const CacheBudget *budget, guint8 *ret_place)
{
    g_autofree int64_t *counts = g_new0(int64_t, n_slots_of(choice) + 1);
    g_autofree const CutPoint **sets = g_new0(const CutPoint *, choice->n_layers);
    CacheBudget carried = *budget;
    fill_up(choice, budget->hbm_bytes, budget->ddr_bytes, &carried.ddr_bytes, counts);
    assign_layers(choice, counts, sets);
    place_items(choice, items, sets, &carried, ret_place);
}
