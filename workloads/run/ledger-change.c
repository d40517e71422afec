/* What has changed in a walk since its mark, in words. */
#include "workloads/run/ledger-walk.h"

static int by_slot(gconstpointer a, gconstpointer b)
{
    gint32 x = ((const SavedAlive *)a)->slot, y = ((const SavedAlive *)b)->slot;
    return x < y ? -1 : x > y;
}

/* Where a buffer's block is, as far as that is asked: on which shelf, or there. */
static void append_place(const LedgerWalk *walk, const Alive *alive, guint32 shelves, GArray *words)
{
    int64_t shelf = alloc_model_block_shelf(walk->alloc, alive->block);
    if (shelves >> shelf & 1u) {
        alloc_model_append_place(walk->alloc, alive->block, words);
    } else {
        g_array_append_val(words, shelf);
    }
}

gboolean walk_append_change(LedgerWalk *walk, guint32 shelves, GArray *words)
{
    AllocTail tails[ALLOC_TAILS_MAX];
    int n_tails = alloc_model_append_change(walk->alloc, shelves, words, tails);
    for (int i = 0; i < n_tails; i++) {
        g_array_append_val(words, tails[i].bytes);
    }
    int64_t end = n_tails;
    g_array_append_val(words, end);
    g_array_sort(walk->saved, by_slot);
    for (guint i = 0; i < walk->saved->len; i++) {
        const SavedAlive *saved = &g_array_index(walk->saved, SavedAlive, i);
        const Alive *alive = &walk->alive[saved->slot];
        int64_t entry[] = {(int64_t)saved->slot << 32 | alive->alive << 16 | alive->tier << 8 | alive->tag,
                           alive->bytes, alive->rounded_bytes};
        if (alive->alive || saved->alive.alive) {
            g_array_append_vals(words, entry, G_N_ELEMENTS(entry));
        }
        if (alive->alive && alive->tier == TIER_HBM) {
            append_place(walk, alive, shelves, words);
        }
    }
    return n_tails >= 0;
}
