#include "models/moe-tables.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/base/quantity.h"

static const char *const drop_names[N_MOE_DROPS] = {
    [MOE_DROP_POSITION] = "position",
    [MOE_DROP_POSITION_CHOICE] = "position_choice",
    [MOE_DROP_PROBS] = "probability",
};

static const struct {
    const char *name;
    int64_t top_k;
} capacity_rules[N_MOE_CAPACITY_RULES] = {
    [MOE_CAPACITY_MEGATRON] = {"megatron", 0}, [MOE_CAPACITY_DEEPSPEED] = {"deepspeed", 0}, [MOE_CAPACITY_TUTEL] = {"tutel", 0},
    [MOE_CAPACITY_SWITCH] = {"switch", 1},     [MOE_CAPACITY_GSHARD] = {"gshard", 2},
};

const char *moe_capacity_rule_name(MoeCapacityRule rule)
{
    g_assert(rule < N_MOE_CAPACITY_RULES);
    return capacity_rules[rule].name;
}

gboolean moe_capacity_rule_from_name(const char *name, MoeCapacityRule *ret_rule)
{
    for (int i = 0; i < N_MOE_CAPACITY_RULES; i++) {
        if (strcmp(capacity_rules[i].name, name) == 0) {
            *ret_rule = (MoeCapacityRule)i;
            return TRUE;
        }
    }
    return FALSE;
}

int64_t moe_capacity_rule_top_k(MoeCapacityRule rule)
{
    g_assert(rule < N_MOE_CAPACITY_RULES);
    return capacity_rules[rule].top_k;
}

const char *moe_drop_name(MoeDrop drop)
{
    g_assert(drop < N_MOE_DROPS);
    return drop_names[drop];
}

gboolean moe_drop_from_name(const char *name, MoeDrop *ret_drop)
{
    for (int i = 0; i < N_MOE_DROPS; i++) {
        if (strcmp(drop_names[i], name) == 0) {
            *ret_drop = (MoeDrop)i;
            return TRUE;
        }
    }
    return FALSE;
}

int64_t moe_capacity(MoeCapacityRule rule, const MoeShape *shape, double factor, int64_t extra)
{
    double even = (double)shape->n_tokens * (double)shape->top_k / (double)shape->experts;
    int64_t capacity = (int64_t)ceil(even * factor);
    g_assert(shape->n_tokens >= 0 && shape->top_k > 0 && shape->experts > 0 && factor >= 0);
    switch (rule) {
    case MOE_CAPACITY_DEEPSPEED:
        return MAX(capacity, extra);
    case MOE_CAPACITY_TUTEL:
        capacity = shape->top_k * (int64_t)floor(factor * (double)quantity_div_up(shape->n_tokens, shape->experts));
        return quantity_round_up(capacity, MAX(extra, 1));
    case MOE_CAPACITY_SWITCH:
        return (int64_t)floor((double)shape->n_tokens / (double)shape->experts * factor);
    case MOE_CAPACITY_GSHARD:
        return (int64_t)floor(2 * (double)shape->n_tokens / (double)shape->experts * factor);
    case MOE_CAPACITY_MEGATRON:
    case N_MOE_CAPACITY_RULES:
    default:
        return capacity;
    }
}

int64_t moe_capacity_rows(const MoeCapacity *capacity, const MoeShape *shape)
{
    int64_t multiple = MAX(capacity->multiple, 1);
    if (capacity->factor <= 0) {
        return 0;
    }
    int64_t extra = capacity->rule == MOE_CAPACITY_DEEPSPEED ? capacity->least : multiple;
    return quantity_round_up(MAX(moe_capacity(capacity->rule, shape, capacity->factor, extra), 1), multiple);
}

static int64_t n_above(const int64_t *counts, int64_t n, int64_t capacity)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += MAX(counts[i] - capacity, 0);
    }
    return sum;
}

int64_t moe_capacity_measured(const MoeCapacity *capacity, const MoeShape *shape, const int64_t *counts, int64_t n_sources,
                              double drop_target)
{
    int64_t n = n_sources * shape->experts, multiple = MAX(capacity->multiple, 1), sum = 0, most = 1;
    int64_t bound = moe_capacity_rows(capacity, shape);
    for (int64_t i = 0; i < n; i++) {
        sum += counts[i];
        most = MAX(most, counts[i]);
    }
    int64_t low = 1, high = quantity_div_up(most, multiple); /* in multiples; high drops nothing */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if ((double)n_above(counts, n, middle * multiple) <= drop_target * (double)sum) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return bound > 0 ? MIN(high * multiple, bound) : high * multiple;
}

/* Keeps the first C slots of each expert: by token, or by choice and then token. */
static void keep_first(gboolean by_choice, const MoeShape *shape, const int64_t *sel, int64_t *room, guint8 *keep)
{
    int64_t top_k = shape->top_k;
    int64_t n_outer = by_choice ? top_k : shape->n_tokens;
    int64_t n_inner = by_choice ? shape->n_tokens : top_k;
    for (int64_t outer = 0; outer < n_outer; outer++) {
        for (int64_t inner = 0; inner < n_inner; inner++) {
            int64_t slot = by_choice ? inner * top_k + outer : outer * top_k + inner;
            keep[slot] = room[sel[slot]] > 0 ? 1 : 0;
            room[sel[slot]] -= keep[slot];
        }
    }
}

typedef struct KeepKey {
    double weight;
    int64_t slot;
} KeepKey;

static int keep_key_compare(const void *a, const void *b)
{
    const KeepKey *x = a;
    const KeepKey *y = b;
    if (x->weight != y->weight) {
        return x->weight > y->weight ? -1 : 1;
    }
    return x->slot < y->slot ? -1 : 1;
}

/*
 * Weights nearer than this are ties. Tokens of the same history have equal weights but for the rounding of products that are
 * blocked differently from rank to rank; which of them goes must not hang on that.
 */
static const double weight_unit = 0x1p-40;

/* Keeps the C largest weights of each expert: one sort of all slots, then first come first served. */
static void keep_largest(int64_t n_slots, const int64_t *sel, const double *weights, int64_t *room, guint8 *keep)
{
    g_autofree KeepKey *keys = g_new(KeepKey, n_slots);
    for (int64_t s = 0; s < n_slots; s++) {
        keys[s] = (KeepKey){nearbyint(weights[s] / weight_unit), s};
    }
    qsort(keys, (size_t)n_slots, sizeof *keys, keep_key_compare);
    for (int64_t i = 0; i < n_slots; i++) {
        int64_t slot = keys[i].slot;
        keep[slot] = room[sel[slot]] > 0 ? 1 : 0;
        room[sel[slot]] -= keep[slot];
    }
}

void moe_keep(MoeDrop drop, const MoeShape *shape, int64_t capacity, const int64_t *sel, const double *weights,
              guint8 *keep)
{
    g_autofree int64_t *room = g_new(int64_t, shape->experts);
    for (int64_t e = 0; e < shape->experts; e++) {
        room[e] = capacity;
    }
    if (drop == MOE_DROP_PROBS) {
        keep_largest(shape->n_tokens * shape->top_k, sel, weights, room, keep);
    } else {
        keep_first(drop == MOE_DROP_POSITION_CHOICE, shape, sel, room, keep);
    }
}

int64_t moe_order(const MoeShape *shape, const int64_t *sel, const guint8 *keep, int64_t *order, int64_t *counts)
{
    int64_t experts = shape->experts;
    int64_t n_choices = shape->n_tokens * shape->top_k;
    g_autofree int64_t *next = g_new(int64_t, experts);
    int64_t n_slots = 0;
    memset(counts, 0, (size_t)experts * sizeof *counts);
    for (int64_t s = 0; s < n_choices; s++) {
        g_assert(sel[s] >= 0 && sel[s] < experts);
        counts[sel[s]] += keep == NULL || keep[s] ? 1 : 0;
    }
    for (int64_t e = 0; e < experts; e++) {
        next[e] = n_slots;
        n_slots += counts[e];
    }
    for (int64_t s = 0; s < n_choices; s++) {
        if (keep == NULL || keep[s]) {
            order[next[sel[s]]++] = s;
        }
    }
    for (int64_t s = n_slots; s < n_choices; s++) {
        order[s] = -1;
    }
    return n_slots;
}

int64_t *moe_slot_of(const int64_t *order, int64_t n_slots, int64_t n_choices)
{
    int64_t *slot_of = g_new(int64_t, n_choices);
    for (int64_t i = 0; i < n_choices; i++) {
        slot_of[i] = -1;
    }
    for (int64_t s = 0; s < n_slots; s++) {
        g_assert(order[s] >= 0 && order[s] < n_choices);
        slot_of[order[s]] = s;
    }
    return slot_of;
}

int64_t *moe_padded_slot_of(const int64_t *order, const int64_t *counts, int64_t experts, int64_t capacity, int64_t n_choices)
{
    int64_t *slot_of = g_new(int64_t, n_choices);
    int64_t s = 0;
    for (int64_t i = 0; i < n_choices; i++) {
        slot_of[i] = -1;
    }
    for (int64_t e = 0; e < experts; e++) {
        g_assert(counts[e] <= capacity);
        for (int64_t i = 0; i < counts[e]; i++) {
            slot_of[order[s++]] = e * capacity + i;
        }
    }
    return slot_of;
}

int64_t moe_send_rows(const int64_t *counts, int64_t experts, int64_t n_ranks, int64_t dest)
{
    int64_t local = experts / n_ranks;
    int64_t rows = 0;
    for (int64_t e = dest * local; e < (dest + 1) * local; e++) {
        rows += counts[e];
    }
    return rows;
}

int64_t moe_arrival(const int64_t *counts, int64_t n_ranks, int64_t local_experts, int64_t *arrival, int64_t *rows)
{
    g_autofree int64_t *start = g_new(int64_t, n_ranks * local_experts); /* of each (source, expert) on arrival */
    int64_t n_rows = 0;
    int64_t place = 0;
    for (int64_t i = 0; i < n_ranks * local_experts; i++) {
        start[i] = n_rows;
        n_rows += counts[i];
    }
    for (int64_t e = 0; e < local_experts; e++) {
        int64_t first = place;
        for (int64_t source = 0; source < n_ranks; source++) {
            int64_t chunk = source * local_experts + e;
            for (int64_t i = 0; i < counts[chunk]; i++) {
                if (arrival != NULL) {
                    arrival[place] = start[chunk] + i;
                }
                place++;
            }
        }
        if (rows != NULL) {
            rows[e] = place - first;
        }
    }
    return n_rows;
}

int64_t moe_distinct_ranks(const int64_t *sel, int64_t top_k, int64_t experts, int64_t n_ranks)
{
    int64_t local = experts / n_ranks;
    int64_t n_distinct = 0;
    for (int64_t j = 0; j < top_k; j++) {
        gboolean seen = FALSE;
        for (int64_t i = 0; i < j; i++) {
            seen = seen || sel[i] / local == sel[j] / local;
        }
        n_distinct += seen ? 0 : 1;
    }
    return n_distinct;
}

double moe_expected_ranks(int64_t experts, int64_t top_k, int64_t n_ranks)
{
    int64_t local = experts / n_ranks;
    double missed = 1; /* probability that a given rank gets none of the k choices */
    for (int64_t j = 0; j < top_k; j++) {
        missed *= MAX((double)(experts - local - j), 0) / (double)(experts - j);
    }
    return (double)n_ranks * (1 - missed);
}
