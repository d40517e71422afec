#include "sim/mem/block-bins.h"

#include <string.h>

enum { BINS_MIN = 64, BLOCKS_MIN = 256, HINT_BITS = 8, N_HINTS = 1 << HINT_BITS };

/* Blocks of one size, by falling address. */
typedef struct Bin {
    gint32 *blocks;
    gint32 n, n_max;
    gint32 rank;   /* place of its size among the sizes */
    int64_t bytes; /* that size */
} Bin;

typedef struct Shelf {
    Bin *bins;      /* in the order in which their sizes came up */
    int64_t *sizes; /* by rank, rising */
    gint32 *order;  /* by rank: the bin */
    uint64_t *full; /* bits by rank: the bin holds something */
    gint32 n, n_max; /* bins */
    gint32 hints[N_HINTS]; /* by a hash of the size: bins that sizes had */
} Shelf;

void block_bins_init(BlockBins *bins, int n_shelves)
{
    *bins = (BlockBins){.n_blocks = 1, .n_blocks_max = BLOCKS_MIN, .n_shelves = n_shelves};
    bins->blocks = g_new0(Block, bins->n_blocks_max);
    bins->shelves = g_new0(Shelf, n_shelves);
}

void block_bins_clear(BlockBins *bins)
{
    for (int s = 0; s < bins->n_shelves; s++) {
        Shelf *shelf = &bins->shelves[s];
        for (gint32 i = 0; i < shelf->n; i++) {
            g_free(shelf->bins[i].blocks);
        }
        g_free(shelf->bins);
        g_free(shelf->sizes);
        g_free(shelf->order);
        g_free(shelf->full);
    }
    g_free(bins->shelves);
    g_free(bins->blocks);
    g_free(bins->saved);
}

static void set_full(Shelf *shelf, gint32 rank, gboolean full)
{
    uint64_t bit = (uint64_t)1 << (rank & 63);
    shelf->full[rank >> 6] = full ? shelf->full[rank >> 6] | bit : shelf->full[rank >> 6] & ~bit;
}

/* Leaves out the bins that hold nothing: sizes come up that never come up again. */
static void compact(BlockBins *bins, Shelf *shelf)
{
    gint32 kept = 0;
    g_autofree Bin *full = g_new(Bin, shelf->n + 1);
    for (gint32 rank = 0; rank < shelf->n; rank++) {
        Bin *bin = &shelf->bins[shelf->order[rank]];
        if (bin->n == 0) {
            g_free(bin->blocks);
            continue;
        }
        for (gint32 i = 0; i < bin->n; i++) {
            bins->blocks[bin->blocks[i]].bin = kept;
        }
        full[kept] = *bin;
        full[kept].rank = kept;
        shelf->sizes[kept] = shelf->sizes[rank];
        kept++;
    }
    if (shelf->n_max > 0) {
        memset(shelf->full, 0, sizeof *shelf->full * (size_t)(shelf->n_max / 64));
    }
    shelf->n = kept;
    for (gint32 i = 0; i < kept; i++) {
        shelf->bins[i] = full[i];
        shelf->order[i] = i;
        set_full(shelf, i, TRUE);
    }
}

/* The bins of a shelf with their blocks; sizes and hints as they are. */
static void copy_shelf(Shelf *to, const Shelf *from)
{
    for (gint32 i = 0; i < to->n; i++) {
        g_free(to->bins[i].blocks);
    }
    if (to->n_max != from->n_max) {
        to->bins = g_renew(Bin, to->bins, from->n_max);
        to->sizes = g_renew(int64_t, to->sizes, from->n_max);
        to->order = g_renew(gint32, to->order, from->n_max);
        to->full = g_renew(uint64_t, to->full, from->n_max / 64);
    }
    to->n = from->n;
    to->n_max = from->n_max;
    memcpy(to->hints, from->hints, sizeof to->hints);
    if (from->n_max > 0) {
        memcpy(to->sizes, from->sizes, sizeof *to->sizes * (size_t)from->n);
        memcpy(to->order, from->order, sizeof *to->order * (size_t)from->n);
        memcpy(to->full, from->full, sizeof *to->full * (size_t)(from->n_max / 64));
    }
    for (gint32 i = 0; i < from->n; i++) {
        const Bin *bin = &from->bins[i];
        to->bins[i] = (Bin){.n = bin->n, .n_max = bin->n, .rank = bin->rank, .bytes = bin->bytes};
        to->bins[i].blocks = g_memdup2(bin->blocks, sizeof *bin->blocks * (size_t)bin->n);
    }
}

void block_bins_copy(BlockBins *to, const BlockBins *from)
{
    g_assert(to->n_shelves == from->n_shelves);
    for (int s = 0; s < from->n_shelves; s++) {
        copy_shelf(&to->shelves[s], &from->shelves[s]);
    }
    if (to->n_blocks_max < from->n_blocks) {
        to->n_blocks_max = from->n_blocks_max;
        to->blocks = g_renew(Block, to->blocks, to->n_blocks_max);
    }
    to->n_blocks = from->n_blocks;
    to->spare = from->spare;
    memcpy(to->blocks, from->blocks, sizeof *to->blocks * (size_t)from->n_blocks);
    for (int s = 0; s < to->n_shelves; s++) {
        compact(to, &to->shelves[s]);
    }
    /* stamps are those of the other's marks: no mark of this one's may be among them */
    to->n_marks = MAX(to->n_marks, from->n_marks);
    to->mark = 0;
    to->n_saved = 0;
}

void block_bins_save(BlockBins *bins, gint32 block)
{
    enum { SAVED_MIN = 64 };
    if (bins->n_saved == bins->n_saved_max) {
        bins->n_saved_max = MAX(SAVED_MIN, 2 * bins->n_saved_max);
        bins->saved = g_renew(SavedBlock, bins->saved, bins->n_saved_max);
    }
    bins->saved[bins->n_saved++] = (SavedBlock){block, bins->blocks[block]};
    bins->blocks[block].stamp = bins->mark;
}

void block_bins_mark(BlockBins *bins)
{
    enum { MANY = 48 };
    for (int s = 0; s < bins->n_shelves; s++) {
        if (bins->shelves[s].n > MANY) {
            compact(bins, &bins->shelves[s]);
        }
    }
    bins->mark = ++bins->n_marks;
    bins->n_blocks_marked = bins->n_blocks;
    bins->spare_marked = bins->spare;
    bins->n_saved = 0;
}

/* Whether a block stands on its shelf. */
static gboolean is_shelved(const Block *block)
{
    return block->bytes > 0 && !block->is_used;
}

void block_bins_rewind(BlockBins *bins)
{
    for (gint32 idx = bins->n_blocks_marked; idx < bins->n_blocks; idx++) {
        if (is_shelved(&bins->blocks[idx])) {
            block_bins_take(bins, bins->blocks[idx].shelf, idx);
        }
    }
    for (guint i = 0; i < bins->n_saved; i++) {
        gint32 idx = bins->saved[i].idx;
        if (is_shelved(&bins->blocks[idx])) {
            block_bins_take(bins, bins->blocks[idx].shelf, idx);
        }
    }
    bins->n_blocks = bins->n_blocks_marked;
    bins->spare = bins->spare_marked;
    bins->mark = 0;
    for (guint i = 0; i < bins->n_saved; i++) {
        const SavedBlock *saved = &bins->saved[i];
        bins->blocks[saved->idx] = saved->block;
        if (is_shelved(&saved->block)) {
            block_bins_put(bins, saved->block.shelf, saved->idx);
        }
    }
    bins->n_saved = 0;
}

void block_bins_reset(BlockBins *bins)
{
    bins->n_blocks = 1;
    bins->spare = 0;
    bins->mark = 0;
    for (int s = 0; s < bins->n_shelves; s++) {
        Shelf *shelf = &bins->shelves[s];
        for (gint32 i = 0; i < shelf->n; i++) {
            shelf->bins[i].n = 0;
        }
        if (shelf->n_max > 0) {
            memset(shelf->full, 0, sizeof *shelf->full * (size_t)(shelf->n_max / 64));
        }
    }
}

gint32 block_bins_n_places(const BlockBins *bins)
{
    return bins->n_blocks - 1;
}

gint32 block_bins_add(BlockBins *bins)
{
    gint32 block = bins->spare;
    if (block != 0) {
        bins->spare = block_bins_edit(bins, block)->bin;
    } else {
        g_assert(bins->n_blocks < G_MAXINT32 / 2);
        if (bins->n_blocks == bins->n_blocks_max) {
            bins->n_blocks_max *= 2;
            bins->blocks = g_renew(Block, bins->blocks, bins->n_blocks_max);
        }
        block = bins->n_blocks++;
    }
    bins->blocks[block] = (Block){.stamp = bins->mark};
    return block;
}

void block_bins_drop(BlockBins *bins, gint32 block)
{
    Block *dropped = block_bins_edit(bins, block);
    *dropped = (Block){.bin = bins->spare, .stamp = dropped->stamp};
    bins->spare = block;
}

static gint32 *hint_of(const Shelf *shelf, int64_t bytes)
{
    return (gint32 *)(uintptr_t)&shelf->hints[(uint64_t)bytes * 0x9e3779b97f4a7c15u >> (64 - HINT_BITS)];
}

/* Whether a bin that was guessed is that of a size. */
static inline gboolean is_bin_of(const Shelf *shelf, gint32 bin, int64_t bytes)
{
    return bin < shelf->n && shelf->bins[bin].bytes == bytes;
}

/* First rank whose size is at least that. */
static gint32 find_rank(const Shelf *shelf, int64_t bytes)
{
    gint32 low = 0, high = shelf->n;
    while (low < high) {
        gint32 middle = (low + high) / 2;
        if (shelf->sizes[middle] < bytes) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void grow(Shelf *shelf)
{
    gint32 before = shelf->n_max;
    shelf->n_max = MAX(BINS_MIN, 2 * before);
    shelf->bins = g_renew(Bin, shelf->bins, shelf->n_max);
    shelf->sizes = g_renew(int64_t, shelf->sizes, shelf->n_max);
    shelf->order = g_renew(gint32, shelf->order, shelf->n_max);
    shelf->full = g_renew(uint64_t, shelf->full, shelf->n_max / 64);
    memset(shelf->full + before / 64, 0, sizeof *shelf->full * (size_t)((shelf->n_max - before) / 64));
}

/* A bin for a size that comes up for the first time: those of larger sizes move on. */
static Bin *add_bin(Shelf *shelf, gint32 rank, int64_t bytes)
{
    if (shelf->n == shelf->n_max) {
        grow(shelf);
    }
    gint32 idx = shelf->n++;
    for (gint32 r = idx; r > rank; r--) {
        shelf->sizes[r] = shelf->sizes[r - 1];
        shelf->order[r] = shelf->order[r - 1];
        Bin *moved = &shelf->bins[shelf->order[r]];
        moved->rank = r;
        set_full(shelf, r, moved->n > 0);
    }
    shelf->sizes[rank] = bytes;
    shelf->order[rank] = idx;
    shelf->bins[idx] = (Bin){.rank = rank, .bytes = bytes};
    set_full(shelf, rank, FALSE);
    return &shelf->bins[idx];
}

/* The bin of a size; guess: the bin that the block stood in last. */
static Bin *bin_for(Shelf *shelf, int64_t bytes, gint32 guess)
{
    gint32 *hint = hint_of(shelf, bytes);
    if (is_bin_of(shelf, guess, bytes)) {
        return &shelf->bins[guess];
    }
    if (is_bin_of(shelf, *hint, bytes)) {
        return &shelf->bins[*hint];
    }
    gint32 rank = find_rank(shelf, bytes);
    gboolean is_known = rank < shelf->n && shelf->sizes[rank] == bytes;
    Bin *bin = is_known ? &shelf->bins[shelf->order[rank]] : add_bin(shelf, rank, bytes);
    *hint = (gint32)(bin - shelf->bins);
    return bin;
}

/* Where a block of that address stands in a bin, or would stand. The lowest addresses come and go most. */
static gint32 place_in(const BlockBins *bins, const Bin *bin, int64_t address)
{
    gint32 low = 0, high = bin->n;
    if (high == 0 || bins->blocks[bin->blocks[high - 1]].address > address) {
        return high;
    }
    while (low < high) {
        gint32 middle = (low + high) / 2;
        if (bins->blocks[bin->blocks[middle]].address > address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void block_bins_put(BlockBins *bins, int shelf_idx, gint32 idx)
{
    Shelf *shelf = &bins->shelves[shelf_idx];
    Block *block = block_bins_get(bins, idx);
    Bin *bin = bin_for(shelf, block->bytes, block->bin);
    if (bin->n == bin->n_max) {
        bin->n_max = MAX(4, 2 * bin->n_max);
        bin->blocks = g_renew(gint32, bin->blocks, bin->n_max);
    }
    gint32 at = place_in(bins, bin, block->address);
    if (at < bin->n) {
        memmove(&bin->blocks[at + 1], &bin->blocks[at], sizeof *bin->blocks * (size_t)(bin->n - at));
    }
    bin->blocks[at] = idx;
    bin->n++;
    block->bin = (gint32)(bin - shelf->bins);
    if (bin->n == 1) {
        set_full(shelf, bin->rank, TRUE);
    }
}

void block_bins_take(BlockBins *bins, int shelf_idx, gint32 idx)
{
    Shelf *shelf = &bins->shelves[shelf_idx];
    const Block *block = block_bins_get(bins, idx);
    Bin *bin = &shelf->bins[block->bin];
    gint32 last = --bin->n;
    if (bin->blocks[last] != idx) {
        gint32 at = place_in(bins, bin, block->address);
        g_assert(at < last && bin->blocks[at] == idx);
        memmove(&bin->blocks[at], &bin->blocks[at + 1], sizeof *bin->blocks * (size_t)(last - at));
    }
    if (last == 0) {
        set_full(shelf, bin->rank, FALSE);
    }
}

gboolean block_bins_holds(const BlockBins *bins, int shelf_idx, gint32 idx)
{
    const Shelf *shelf = &bins->shelves[shelf_idx];
    gint32 rank = find_rank(shelf, block_bins_get(bins, idx)->bytes);
    if (rank == shelf->n || shelf->sizes[rank] != block_bins_get(bins, idx)->bytes) {
        return FALSE;
    }
    const Bin *bin = &shelf->bins[shelf->order[rank]];
    for (gint32 i = 0; i < bin->n; i++) {
        if (bin->blocks[i] == idx) {
            return TRUE;
        }
    }
    return FALSE;
}

/* The first bin from a rank on that holds something, or NULL. */
static const Bin *first_full(const Shelf *shelf, gint32 rank)
{
    gint32 word = rank >> 6, n_words = (shelf->n + 63) / 64;
    if (rank >= shelf->n) {
        return NULL;
    }
    uint64_t bits = shelf->full[word] & ~(uint64_t)0 << (rank & 63);
    while (bits == 0) {
        if (++word == n_words) {
            return NULL;
        }
        bits = shelf->full[word];
    }
    return &shelf->bins[shelf->order[(word << 6) + __builtin_ctzll(bits)]];
}

gint32 block_bins_at_least(const BlockBins *bins, int shelf_idx, int64_t bytes)
{
    const Shelf *shelf = &bins->shelves[shelf_idx];
    gint32 guess = *hint_of(shelf, bytes);
    gint32 rank = is_bin_of(shelf, guess, bytes) ? shelf->bins[guess].rank : find_rank(shelf, bytes);
    const Bin *bin = first_full(shelf, rank);
    return bin != NULL ? bin->blocks[bin->n - 1] : 0;
}

int64_t block_bins_next_bytes(const BlockBins *bins, int shelf_idx, gint32 idx, gint32 *ret_block)
{
    const Shelf *shelf = &bins->shelves[shelf_idx];
    const Bin *own = &shelf->bins[block_bins_get(bins, idx)->bin];
    const Bin *bin = own->n > 1 ? own : first_full(shelf, own->rank + 1);
    if (bin == NULL) {
        *ret_block = 0;
        return G_MAXINT64;
    }
    *ret_block = bin->blocks[bin->n - 1] != idx ? bin->blocks[bin->n - 1] : bin->blocks[bin->n - 2];
    return shelf->sizes[bin->rank];
}
