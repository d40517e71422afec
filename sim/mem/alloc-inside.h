/*
 * Inside of the allocation model (alloc-model.h): what its two files share. alloc-model.c takes and gives blocks,
 * alloc-change.c says what has changed since a mark and for which sizes of tails everything would go the same way.
 */
#pragma once

#include "sim/mem/alloc-model.h"
#include "sim/mem/block-bins.h"

enum {
    ALLOC_ROUND = 512,   /* every block is a multiple of this */
    SMALL_MAX = 1 << 20, /* requests up to this take the small pool; larger remainders of large blocks split */
    SMALL_SEGMENT = 2 << 20,
    MIDDLE_MAX = 10 << 20, /* requests below this take … */
    MIDDLE_SEGMENT = 20 << 20,
    SEGMENT_ROUND = 2 << 20, /* larger segments are multiples of this */
    SMALL_PAGE = 2 << 20,    /* expandable segments grow by multiples of these */
    LARGE_PAGE = 20 << 20,
};

/* Address space of one expandable segment. */
enum { ALLOC_RANGE_BITS = 44 };
#define ALLOC_RANGE ((int64_t)1 << ALLOC_RANGE_BITS)

typedef enum Pool { POOL_SMALL, POOL_LARGE, N_POOLS } Pool;

struct AllocModel {
    int n_streams;
    int64_t capacity_bytes; /* G_MAXINT64: no bound */
    int64_t next_address;   /* of the next segment; addresses are not used twice */
    BlockBins blocks;       /* free ones on shelf stream x pool */
    gboolean expandable;
    gint32 *tails; /* by shelf: last block of the expandable segment, or 0 */
    AllocStats stats;
    AllocStats stats_marked; /* these as they were at the mark */
    int64_t next_address_marked;
    gint32 *tails_marked;
    GArray *starts;     /* int64_t: of segments that came after the mark, rising */
    AllocTail *watched; /* or NULL */
    int n_watched;
    uint64_t watched_shelves; /* bits: those on which one of them is */
};

/*
 * What a choice (0: none) for a request says about the tails that are watched. least_rest: what must be left over for
 * the chosen block to be split.
 */
void alloc_watch_choice(AllocModel *model, int shelf, gint32 chosen, int64_t bytes, int64_t least_rest);
