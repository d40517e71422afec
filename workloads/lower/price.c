#include "workloads/lower/price.h"

#include <string.h>

/* A kernel and its price; the kernel comes first, as the key. */
typedef struct Priced {
    Work work;
    Price price;
} Priced;

struct PriceList {
    GHashTable *table; /* for look-up alone: never iterated */
    size_t rows_bytes;
};

static guint work_hash(gconstpointer key)
{
    const Work *work = key;
    const int64_t parts[] = {work->law, work->dtype, work->read_bytes, work->write_bytes, work->m, work->n, work->k, work->n_groups};
    uint64_t hash = 0;
    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
        hash = (hash ^ (uint64_t)parts[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    for (int64_t i = 0; work->group_rows != NULL && i < work->n_groups; i++) {
        hash = (hash ^ (uint64_t)work->group_rows[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return (guint)hash;
}

static gboolean rows_equal(const Work *a, const Work *b)
{
    if (a->group_rows == NULL || b->group_rows == NULL || a->n_groups != b->n_groups) {
        return a->group_rows == b->group_rows;
    }
    return memcmp(a->group_rows, b->group_rows, (size_t)a->n_groups * sizeof *a->group_rows) == 0;
}

static gboolean work_equal(gconstpointer a, gconstpointer b)
{
    const Work *x = a, *y = b;
    gboolean same_shape = x->m == y->m && x->n == y->n && x->k == y->k && x->n_groups == y->n_groups;
    gboolean same_bytes = x->read_bytes == y->read_bytes && x->write_bytes == y->write_bytes;
    gboolean same_flops = memcmp(&x->flops, &y->flops, sizeof x->flops) == 0;
    return x->law == y->law && x->dtype == y->dtype && same_shape && same_bytes && same_flops && rows_equal(x, y);
}

static void priced_free(void *data)
{
    Priced *priced = data;
    g_free((void *)(uintptr_t)priced->work.group_rows);
    g_free(priced);
}

PriceList *price_list_new(void)
{
    PriceList *list = g_new0(PriceList, 1);
    list->table = g_hash_table_new_full(work_hash, work_equal, priced_free, NULL);
    return list;
}

void price_list_free(PriceList *list)
{
    if (list != NULL) {
        g_hash_table_unref(list->table);
        g_free(list);
    }
}

size_t price_list_size_bytes(const PriceList *list)
{
    enum { SLOT_BYTES = 64 };
    return g_hash_table_size(list->table) * (sizeof(Priced) + SLOT_BYTES) + list->rows_bytes;
}

static Price price_of(const Device *device, const Work *work)
{
    Price price = {.evidence = EVIDENCE_ASSUMED};
    timing_in_step_curve(device, work, clock_shares, N_CLOCK_SHARES, price.one_ns, &price.power_share, &price.evidence);
    return price;
}

Price price_list_get(PriceList *list, const Device *device, const Work *work)
{
    if (list == NULL) {
        return price_of(device, work);
    }
    Priced *known = g_hash_table_lookup(list->table, work);
    if (known == NULL) {
        known = g_new(Priced, 1);
        known->work = *work;
        if (work->group_rows != NULL) { /* borrowed */
            size_t n_bytes = (size_t)work->n_groups * sizeof *work->group_rows;
            known->work.group_rows = g_memdup2(work->group_rows, n_bytes);
            list->rows_bytes += n_bytes;
        }
        known->price = price_of(device, work);
        g_hash_table_insert(list->table, known, known);
    }
    return known->price;
}
