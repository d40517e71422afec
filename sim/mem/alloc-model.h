/*
 * Allocation model: what a caching device allocator makes of a sequence of allocations.
 *
 * It follows the rules of PyTorch's CUDA caching allocator with its default settings. Sizes are rounded up to
 * 512 bytes. Requests of up to 1 MiB come from a small pool, fed by segments of 2 MiB; others from a large
 * pool, fed by segments of 20 MiB for requests below 10 MiB and of the request rounded up to 2 MiB above. A
 * request takes the smallest free block that holds it, of its own stream (ties: the lowest address); what is
 * left over is split off if it is at least 512 bytes (small) or more than 1 MiB (large). A freed block joins
 * its free neighbours. Segments go back to the device only when it is full, or on request: then every segment
 * that is wholly free is released and the allocation tried once more.
 *
 * With expandable segments every stream and pool has one segment that grows at its end, by pages of 2 MiB (small) or 20 MiB, where
 * its last block, if that is free, is extended; what is left over is split off from 512 bytes on in both pools. Segments are
 * never given back then.
 *
 * A block counts as allocated with its whole size, a remainder too small to split included, as
 * torch.cuda.memory_allocated() does.
 *
 * Invariants: (1) the blocks of a segment tile it; (2) no two free blocks are neighbours; (3) free blocks, and
 * only they, are on the shelf of their stream and pool; (4) allocated <= reserved <= capacity.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef struct AllocStats {
    int64_t allocated_bytes, allocated_bytes_max; /* blocks in use */
    int64_t reserved_bytes, reserved_bytes_max;   /* segments */
    int64_t requested_bytes;                      /* as asked for, unrounded */
    int64_t n_blocks, n_blocks_max;               /* in use */
    int64_t n_segments;
    int64_t n_device_allocs; /* segments ever taken from the device */
    int64_t n_retries;       /* allocations that had to release cached segments first */
} AllocStats;

typedef struct AllocModel AllocModel;

/* A block in use; ALLOC_NOTHING for 0 bytes, ALLOC_FAILED when the device is full. */
typedef gint32 AllocBlock;
enum { ALLOC_FAILED = -1, ALLOC_NOTHING = 0 };

/* capacity_bytes: of the device, for segments; 0 = no bound. Streams are numbered from 0. */
AllocModel *alloc_model_new(int n_streams, int64_t capacity_bytes);
void alloc_model_free(AllocModel *model);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(AllocModel, alloc_model_free)

/* Switches to expandable segments; before the first allocation. */
void alloc_model_make_expandable(AllocModel *model);

/* Bounds what segments may take, as alloc_model_new() does; before the first allocation. 0 = no bound. */
void alloc_model_bound(AllocModel *model, int64_t capacity_bytes);

/* Back to the start: an empty device, nothing counted, segments that do not expand. */
void alloc_model_reset(AllocModel *model);

/* Makes `to`, of as many streams, the same as `from` (without its mark). */
void alloc_model_copy(AllocModel *to, const AllocModel *from);

/*
 * Marks the present; rewind goes back to it, once, at the cost of what has changed since. Blocks in use at the mark keep their
 * names.
 */
void alloc_model_mark(AllocModel *model);
void alloc_model_rewind(AllocModel *model);

/*
 * A free block at the end of a segment that came (or of an expandable one that grew) after the mark: its size is left open.
 * least … most: what it may be for everything to go on as it does, once watched.
 */
typedef struct AllocTail {
    gint32 block; /* the last one of the segment, now */
    int64_t bytes, least, most;
} AllocTail;

enum { ALLOC_TAILS_MAX = 16 };

/*
 * Shelves: one of each stream and pool. Without a bound no shelf knows of another, so that what it does depends on what is asked
 * of it alone. Sets of them are bits by their numbers.
 */
int alloc_model_shelf(const AllocModel *model, int stream, int64_t bytes);
int alloc_model_block_shelf(const AllocModel *model, AllocBlock block);

/*
 * Appends words (int64_t) that say what has changed since the mark on some shelves: of two futures of one model, equal words and
 * equal sizes of their tails mean that these shelves are equal, but for the names of blocks and for the addresses of new
 * segments, of which only the order counts. Returns the number of tails, -1: more than ALLOC_TAILS_MAX.
 */
int alloc_model_append_change(AllocModel *model, guint32 shelves, GArray *words, AllocTail *ret_tails);

/* After that: where a block of these shelves is, as a word in which the addresses of new segments do not count either. */
void alloc_model_append_place(const AllocModel *model, AllocBlock block, GArray *words);

/*
 * From now on the model finds out within which sizes of each tail (n of them, borrowed; block and bytes are set) it would do the
 * same, for each whatever the others are within theirs: the same blocks at the same offsets, new segments when it asks for
 * some. n 0: no longer.
 */
void alloc_model_watch(AllocModel *model, AllocTail *tails, int n);

AllocBlock alloc_model_take(AllocModel *model, int stream, int64_t bytes);

/* Gives a block back (ALLOC_NOTHING is fine). */
void alloc_model_give(AllocModel *model, AllocBlock block);

/* Address of a block in use. */
int64_t alloc_model_address(const AllocModel *model, AllocBlock block);

/* Size of a block in use, as it counts in allocated_bytes. */
int64_t alloc_model_block_bytes(const AllocModel *model, AllocBlock block);

/* Releases every segment that is wholly free. */
void alloc_model_release_cached(AllocModel *model);

const AllocStats *alloc_model_stats(const AllocModel *model);

/* What is cached: reserved, and in no block in use. */
typedef struct AllocFree {
    int64_t bytes;
    int64_t bound_bytes; /* of these, what cannot go back to the device: in segments (expandable: pages) that hold blocks in use */
    int64_t largest_bytes; /* the largest free block */
} AllocFree;

/* Looks at every block. */
void alloc_model_free_space(const AllocModel *model, AllocFree *ret_free);

/* From now on the present is the highest. */
void alloc_model_reset_peaks(AllocModel *model);

/* Bytes that a request of that size counts for when it is split off exactly: rounded up to 512. */
int64_t alloc_model_round(int64_t bytes);

/* Memory that the model takes. */
size_t alloc_model_size_bytes(const AllocModel *model);

/* Checks the invariants, block by block; NULL, or what is broken. For tests. */
const char *alloc_model_find_fault(const AllocModel *model);
