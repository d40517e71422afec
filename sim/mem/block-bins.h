/*
 * Block bins: the blocks of an allocator, and its free ones by size, then address.
 *
 * Blocks lie in one array and are named by their place in it, from 1; 0 is none. Free blocks stand in one of several
 * shelves. A shelf has a bin for every size that it ever held, in order of size, and a bit that says whether the bin holds
 * something: a program asks for few sizes, again and again, so the least block that is large enough is found by looking at
 * a few words. A bin keeps its blocks by falling address, so the lowest is at hand.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef struct Block {
    int64_t address;
    int64_t bytes; /* 0: the place is not taken */
    int64_t requested_bytes;
    gint32 before, after; /* neighbours in the segment */
    gint32 bin;           /* on its shelf, while it stands there: see block_bins_put(); the next spare place */
    gint16 shelf;
    guint8 pool;
    guint8 is_used;
    guint32 stamp; /* the last mark that it was changed under */
} Block;

/* A block as it was at a mark. */
typedef struct SavedBlock {
    gint32 idx;
    Block block;
} SavedBlock;

typedef struct BlockBins {
    Block *blocks; /* place 0 is not used */
    gint32 n_blocks, n_blocks_max;
    gint32 spare; /* first place given back, linked by bin */
    struct Shelf *shelves;
    int n_shelves;
    guint32 mark, n_marks; /* the mark that is set, 0 = none; marks ever set */
    gint32 n_blocks_marked, spare_marked;
    SavedBlock *saved; /* what has been changed since the mark */
    guint n_saved, n_saved_max;
} BlockBins;

void block_bins_init(BlockBins *bins, int n_shelves);
void block_bins_clear(BlockBins *bins);

/* Makes `to`, which is initialised with as many shelves, the same as `from`, without its mark. */
void block_bins_copy(BlockBins *to, const BlockBins *from);

/*
 * From a mark on, blocks are saved before they change, so that rewind goes back to it: the same blocks in the same places, the
 * same shelves. It costs what was changed. block_bins_edit() is how a block is changed.
 */
void block_bins_mark(BlockBins *bins);
void block_bins_rewind(BlockBins *bins);

/* Forgets every block, and the mark. */
void block_bins_reset(BlockBins *bins);

/* A new block, all zero. Pointers to blocks hold until the next call of this. */
gint32 block_bins_add(BlockBins *bins);

/* Gives a block's place back; it must be on no shelf. */
void block_bins_drop(BlockBins *bins, gint32 block);

static inline Block *block_bins_get(const BlockBins *bins, gint32 block)
{
    g_assert(block > 0 && block < bins->n_blocks);
    return &bins->blocks[block];
}

/* Saves a block as it is at the mark. */
void block_bins_save(BlockBins *bins, gint32 block);

/* The same for a block that is about to change. */
static inline Block *block_bins_edit(BlockBins *bins, gint32 block)
{
    Block *found = block_bins_get(bins, block);
    if (found->stamp != bins->mark && bins->mark != 0) {
        block_bins_save(bins, block);
    }
    return found;
}

/* Places ever taken. */
gint32 block_bins_n_places(const BlockBins *bins);

/* Puts a block on a shelf, takes it off, asks for it. Its size and address may not change while it is there. */
void block_bins_put(BlockBins *bins, int shelf, gint32 block);
void block_bins_take(BlockBins *bins, int shelf, gint32 block);
gboolean block_bins_holds(const BlockBins *bins, int shelf, gint32 block);

/* Size of the least other block on a shelf that is no smaller than one that stands there; G_MAXINT64: there is none. */
int64_t block_bins_next_bytes(const BlockBins *bins, int shelf, gint32 block, gint32 *ret_block);

/* The least block of at least that many bytes, or 0. */
gint32 block_bins_at_least(const BlockBins *bins, int shelf, int64_t bytes);
