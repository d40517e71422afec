#include "models/placement.h"

#include <stdlib.h>

#include "sim/base/error.h"

typedef struct PackItem {
    double weight;
    int64_t idx;
} PackItem;

static int pack_item_compare(const void *a, const void *b)
{
    const PackItem *x = a;
    const PackItem *y = b;
    if (x->weight != y->weight) {
        return x->weight > y->weight ? -1 : 1;
    }
    return x->idx < y->idx ? -1 : 1;
}

void placement_pack(const double *weights, int64_t n, int64_t m, int64_t *ret_bin, int64_t *ret_place)
{
    int64_t room = n / m;
    if (room == 1) {
        for (int64_t i = 0; i < n; i++) {
            ret_bin[i] = i;
            ret_place[i] = 0;
        }
        return;
    }
    g_autofree PackItem *items = g_new(PackItem, (gsize)n);
    g_autofree double *load = g_new0(double, (gsize)m);
    g_autofree int64_t *held = g_new0(int64_t, (gsize)m);
    for (int64_t i = 0; i < n; i++) {
        items[i] = (PackItem){weights[i], i};
    }
    qsort(items, (size_t)n, sizeof *items, pack_item_compare);
    for (int64_t i = 0; i < n; i++) {
        int64_t best = -1;
        for (int64_t bin = 0; bin < m; bin++) {
            if (held[bin] < room && (best < 0 || load[bin] < load[best])) {
                best = bin;
            }
        }
        ret_bin[items[i].idx] = best;
        ret_place[items[i].idx] = held[best]++;
        load[best] += items[i].weight;
    }
}

/* Copies of n items in n_slots: first one each, then the next to the item with the most load per copy. */
static void replicate(const double *weights, int64_t n, int64_t n_slots, int64_t *ret_item, int64_t *ret_copies)
{
    for (int64_t i = 0; i < n; i++) {
        ret_item[i] = i;
        ret_copies[i] = 1;
    }
    for (int64_t slot = n; slot < n_slots; slot++) {
        int64_t most = 0;
        for (int64_t i = 1; i < n; i++) {
            if (weights[i] / (double)ret_copies[i] > weights[most] / (double)ret_copies[most]) {
                most = i;
            }
        }
        ret_item[slot] = most;
        ret_copies[most]++;
    }
}

static gboolean shape_check(const PlacementShape *s, GError **error)
{
    gboolean positive = s->experts > 0 && s->slots > 0 && s->groups > 0 && s->nodes > 0 && s->gpus > 0;
    if (!positive || s->slots < s->experts || s->slots % s->gpus != 0 || s->gpus % s->nodes != 0 ||
        s->experts % s->groups != 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "placement of %" G_GINT64_FORMAT " experts in %" G_GINT64_FORMAT " groups on %" G_GINT64_FORMAT
                    " slots, %" G_GINT64_FORMAT " GPUs, %" G_GINT64_FORMAT
                    " nodes: there must be a slot for each expert, GPUs must divide the slots, nodes the GPUs and "
                    "groups the experts",
                    s->experts, s->groups, s->slots, s->gpus, s->nodes);
        return FALSE;
    }
    return TRUE;
}

/* Experts node by node, after packing their groups: ret_expert[experts]. */
static void experts_by_node(const PlacementShape *s, const double *loads, int64_t *ret_expert)
{
    int64_t size = s->experts / s->groups;
    int64_t per_node = s->groups / s->nodes;
    g_autofree double *group_load = g_new0(double, (gsize)s->groups);
    g_autofree int64_t *node = g_new(int64_t, (gsize)s->groups);
    g_autofree int64_t *place = g_new(int64_t, (gsize)s->groups);
    for (int64_t e = 0; e < s->experts; e++) {
        group_load[e / size] += loads[e];
    }
    placement_pack(group_load, s->groups, s->nodes, node, place);
    for (int64_t e = 0; e < s->experts; e++) {
        int64_t group = e / size;
        ret_expert[(node[group] * per_node + place[group]) * size + e % size] = e;
    }
}

/* One node: its experts (n of them) copied into its slots, the slots packed to its GPUs. */
static void place_node(const PlacementShape *s, const double *loads, const int64_t *experts, int64_t *ret_expert,
                       int64_t *ret_copies)
{
    int64_t n = s->experts / s->nodes;
    int64_t n_slots = s->slots / s->nodes;
    int64_t n_gpus = s->gpus / s->nodes;
    g_autofree double *weights = g_new(double, (gsize)n);
    g_autofree double *slot_load = g_new(double, (gsize)n_slots);
    g_autofree int64_t *item = g_new(int64_t, (gsize)n_slots);
    g_autofree int64_t *copies = g_new(int64_t, (gsize)n);
    g_autofree int64_t *gpu = g_new(int64_t, (gsize)n_slots);
    g_autofree int64_t *place = g_new(int64_t, (gsize)n_slots);
    for (int64_t i = 0; i < n; i++) {
        weights[i] = loads[experts[i]];
    }
    replicate(weights, n, n_slots, item, copies);
    for (int64_t slot = 0; slot < n_slots; slot++) {
        slot_load[slot] = weights[item[slot]] / (double)copies[item[slot]];
    }
    placement_pack(slot_load, n_slots, n_gpus, gpu, place);
    for (int64_t slot = 0; slot < n_slots; slot++) {
        ret_expert[gpu[slot] * (n_slots / n_gpus) + place[slot]] = experts[item[slot]];
    }
    for (int64_t i = 0; i < n; i++) {
        ret_copies[experts[i]] = copies[i];
    }
}

gboolean placement_eplb(const PlacementShape *shape, const double *loads, int64_t *ret_expert, int64_t *ret_copies,
                        GError **error)
{
    PlacementShape s = *shape;
    if (!shape_check(&s, error)) {
        return FALSE;
    }
    if (s.groups % s.nodes != 0) { /* groups cannot stay together: place globally */
        s.groups = 1;
        s.nodes = 1;
    }
    g_autofree int64_t *experts = g_new(int64_t, (gsize)s.experts);
    experts_by_node(&s, loads, experts);
    for (int64_t node = 0; node < s.nodes; node++) {
        place_node(&s, loads, experts + node * (s.experts / s.nodes), ret_expert + node * (s.slots / s.nodes),
                   ret_copies);
    }
    return TRUE;
}

void placement_gpu_loads(const PlacementShape *shape, const double *loads, const int64_t *expert, const int64_t *copies,
                         double *ret_load)
{
    int64_t per_gpu = shape->slots / shape->gpus;
    for (int64_t gpu = 0; gpu < shape->gpus; gpu++) {
        ret_load[gpu] = 0;
        for (int64_t slot = gpu * per_gpu; slot < (gpu + 1) * per_gpu; slot++) {
            ret_load[gpu] += loads[expert[slot]] / (double)copies[expert[slot]];
        }
    }
}

Placement *placement_new(int64_t experts, int64_t slots, const int64_t *expert)
{
    Placement *p = g_new0(Placement, 1);
    g_autofree int64_t *next = g_new0(int64_t, (gsize)experts);
    p->experts = experts;
    p->slots = slots;
    p->expert = g_memdup2(expert, (gsize)slots * sizeof *expert);
    p->first = g_new0(int64_t, (gsize)experts + 1);
    p->slot = g_new0(int64_t, (gsize)slots);
    for (int64_t s = 0; s < slots; s++) {
        g_assert(expert[s] >= 0 && expert[s] < experts);
        p->first[expert[s] + 1]++;
    }
    for (int64_t e = 0; e < experts; e++) {
        g_assert(p->first[e + 1] > 0);
        p->first[e + 1] += p->first[e];
        next[e] = p->first[e];
    }
    for (int64_t s = 0; s < slots; s++) {
        p->slot[next[expert[s]]++] = s;
    }
    return p;
}

void placement_free(Placement *placement)
{
    if (placement != NULL) {
        g_free(placement->expert);
        g_free(placement->first);
        g_free(placement->slot);
        g_free(placement);
    }
}

void placement_linear(int64_t experts, int64_t slots, int64_t *ret_expert)
{
    for (int64_t s = 0; s < slots; s++) {
        ret_expert[s] = s % experts;
    }
}

int64_t placement_copies(const Placement *placement, int64_t expert)
{
    return placement->first[expert + 1] - placement->first[expert];
}

int64_t placement_slot(const Placement *placement, int64_t expert, int64_t source, int64_t i)
{
    return placement->slot[placement->first[expert] + (i + source) % placement_copies(placement, expert)];
}

int64_t placement_rows(const Placement *placement, int64_t slot, int64_t source, int64_t count)
{
    int64_t expert = placement->expert[slot], copies = placement_copies(placement, expert), copy = 0;
    while (placement->slot[placement->first[expert] + copy] != slot) {
        copy++;
    }
    /* the i with (i + source) mod copies = copy are lead, lead + copies, … */
    int64_t lead = ((copy - source) % copies + copies) % copies;
    return count > lead ? (count - lead - 1) / copies + 1 : 0;
}

void placement_choose(const Placement *placement, int64_t source, const int64_t *sel, const guint8 *keep, int64_t n,
                      int64_t *ret_slot)
{
    g_autofree int64_t *seen = g_new0(int64_t, (gsize)placement->experts);
    for (int64_t i = 0; i < n; i++) {
        gboolean counts = keep == NULL || keep[i];
        ret_slot[i] = placement_slot(placement, sel[i], source, seen[sel[i]]);
        seen[sel[i]] += counts ? 1 : 0;
    }
}

int64_t placement_n_moves(const int64_t *from, const int64_t *to, int64_t n_slots)
{
    int64_t n = 0;
    for (int64_t slot = 0; slot < n_slots; slot++) {
        n += from[slot] != to[slot] ? 1 : 0;
    }
    return n;
}
