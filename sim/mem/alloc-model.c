#include "sim/mem/alloc-model.h"

#include <string.h>

#include "sim/base/quantity.h"
#include "sim/mem/alloc-inside.h"

void alloc_model_bound(AllocModel *model, int64_t capacity_bytes)
{
    g_assert(model->stats.n_segments == 0);
    model->capacity_bytes = capacity_bytes > 0 ? capacity_bytes : G_MAXINT64;
}

AllocModel *alloc_model_new(int n_streams, int64_t capacity_bytes)
{
    g_assert(n_streams > 0 && n_streams * N_POOLS <= 64 && capacity_bytes >= 0);
    AllocModel *model = g_new0(AllocModel, 1);
    model->n_streams = n_streams;
    alloc_model_bound(model, capacity_bytes);
    model->next_address = SEGMENT_ROUND;
    model->tails = g_new0(gint32, n_streams * N_POOLS);
    model->tails_marked = g_new0(gint32, n_streams * N_POOLS);
    model->starts = g_array_new(FALSE, FALSE, sizeof(int64_t));
    block_bins_init(&model->blocks, n_streams * N_POOLS);
    return model;
}

void alloc_model_free(AllocModel *model)
{
    if (model == NULL) {
        return;
    }
    block_bins_clear(&model->blocks);
    g_free(model->tails);
    g_free(model->tails_marked);
    g_array_unref(model->starts);
    g_free(model);
}

void alloc_model_reset(AllocModel *model)
{
    model->next_address = SEGMENT_ROUND;
    model->stats = (AllocStats){0};
    model->expandable = FALSE;
    model->n_watched = 0;
    memset(model->tails, 0, sizeof *model->tails * (size_t)(model->n_streams * N_POOLS));
    block_bins_reset(&model->blocks);
}

size_t alloc_model_size_bytes(const AllocModel *model)
{
    enum { IN_BINS = 2 * sizeof(gint32) }; /* a free block's place in a bin, twice as bins grow by doubling */
    return sizeof *model + (size_t)model->blocks.n_blocks_max * (sizeof(Block) + IN_BINS);
}

void alloc_model_make_expandable(AllocModel *model)
{
    g_assert(model->stats.n_segments == 0);
    model->expandable = TRUE;
}

int64_t alloc_model_round(int64_t bytes)
{
    return (MAX(bytes, 1) + ALLOC_ROUND - 1) & ~(int64_t)(ALLOC_ROUND - 1);
}

static Pool pool_of(int64_t rounded_bytes)
{
    return rounded_bytes <= SMALL_MAX ? POOL_SMALL : POOL_LARGE;
}

int alloc_model_shelf(const AllocModel *model, int stream, int64_t bytes)
{
    g_assert(stream >= 0 && stream < model->n_streams);
    return stream * N_POOLS + (int)pool_of(alloc_model_round(bytes));
}

int alloc_model_block_shelf(const AllocModel *model, AllocBlock block)
{
    return block_bins_get(&model->blocks, block)->shelf;
}

static int64_t segment_bytes(int64_t rounded_bytes)
{
    if (rounded_bytes <= SMALL_MAX) {
        return SMALL_SEGMENT;
    }
    return rounded_bytes < MIDDLE_MAX ? MIDDLE_SEGMENT : quantity_round_up(rounded_bytes, SEGMENT_ROUND);
}

static void count_reserved(AllocModel *model, int64_t bytes)
{
    model->stats.reserved_bytes += bytes;
    model->stats.reserved_bytes_max = MAX(model->stats.reserved_bytes_max, model->stats.reserved_bytes);
    model->stats.n_device_allocs++;
}

/* A block of at least that size at the end of an expandable segment, on no shelf; 0 when the device is full. */
static gint32 grow(AllocModel *model, int shelf, Pool pool, int64_t bytes)
{
    gint32 tail_idx = model->tails[shelf];
    Block *tail = tail_idx != 0 ? block_bins_get(&model->blocks, tail_idx) : NULL;
    gboolean extends = tail != NULL && !tail->is_used;
    int64_t more = quantity_round_up(bytes - (extends ? tail->bytes : 0), pool == POOL_SMALL ? SMALL_PAGE : LARGE_PAGE);
    if (more > model->capacity_bytes - model->stats.reserved_bytes) {
        return 0;
    }
    count_reserved(model, more);
    if (extends) {
        block_bins_take(&model->blocks, shelf, tail_idx);
        block_bins_edit(&model->blocks, tail_idx)->bytes += more;
        return tail_idx;
    }
    gint32 idx = block_bins_add(&model->blocks);
    Block *block = block_bins_get(&model->blocks, idx);
    tail = tail_idx != 0 ? block_bins_get(&model->blocks, tail_idx) : NULL;
    block->address = tail != NULL ? tail->address + tail->bytes : (shelf + 1) * ALLOC_RANGE;
    block->bytes = more;
    block->shelf = (gint16)shelf;
    block->pool = (guint8)pool;
    block->before = tail_idx;
    model->stats.n_segments += tail == NULL;
    if (tail != NULL) {
        block_bins_edit(&model->blocks, tail_idx)->after = idx;
    }
    model->tails[shelf] = idx;
    return idx;
}

/* Where block `idx` was the last of its segment, `now` is. */
static void move_tail(AllocModel *model, int shelf, gint32 idx, gint32 now)
{
    for (int i = 0; i < model->n_watched; i++) {
        if (model->watched[i].block == idx) {
            model->watched[i].block = now;
        }
    }
    if (model->tails[shelf] == idx) {
        model->tails[shelf] = now;
    }
}

/* A new segment as one block on no shelf, or 0 when the device is full. */
static gint32 add_segment(AllocModel *model, int stream, Pool pool, int64_t bytes)
{
    if (bytes > model->capacity_bytes - model->stats.reserved_bytes) {
        return 0;
    }
    gint32 idx = block_bins_add(&model->blocks);
    Block *block = block_bins_get(&model->blocks, idx);
    block->address = model->next_address;
    block->bytes = bytes;
    block->shelf = (gint16)(stream * N_POOLS + (int)pool);
    block->pool = (guint8)pool;
    model->next_address += quantity_round_up(bytes, SEGMENT_ROUND);
    model->stats.n_segments++;
    count_reserved(model, bytes);
    return idx;
}

/* Cuts a block that is on no shelf; the rest becomes a free block. */
static void split(AllocModel *model, gint32 idx, int64_t bytes)
{
    gint32 rest_idx = block_bins_add(&model->blocks);
    Block *block = block_bins_edit(&model->blocks, idx), *rest = block_bins_get(&model->blocks, rest_idx);
    rest->address = block->address + bytes;
    rest->bytes = block->bytes - bytes;
    rest->shelf = block->shelf;
    rest->pool = block->pool;
    rest->before = idx;
    rest->after = block->after;
    if (rest->after != 0) {
        block_bins_edit(&model->blocks, rest->after)->before = rest_idx;
    }
    block->after = rest_idx;
    block->bytes = bytes;
    move_tail(model, block->shelf, idx, rest_idx);
    block_bins_put(&model->blocks, rest->shelf, rest_idx);
}

/* What must be left over of a block for it to be split. */
static int64_t least_rest(const AllocModel *model, Pool pool)
{
    return pool == POOL_SMALL || model->expandable ? ALLOC_ROUND : SMALL_MAX + ALLOC_ROUND;
}

/* A block of at least that size off its shelf or from the device; 0 when there is none. */
static gint32 find_block(AllocModel *model, int stream, Pool pool, int64_t bytes)
{
    int shelf = stream * N_POOLS + (int)pool;
    gint32 idx = block_bins_at_least(&model->blocks, shelf, bytes);
    if (model->n_watched > 0) {
        alloc_watch_choice(model, shelf, idx, bytes, least_rest(model, pool));
    }
    if (idx != 0) {
        block_bins_take(&model->blocks, shelf, idx);
        return idx;
    }
    if (model->expandable) {
        return grow(model, shelf, pool, bytes);
    }
    idx = add_segment(model, stream, pool, segment_bytes(bytes));
    if (idx == 0) {
        model->stats.n_retries++;
        alloc_model_release_cached(model);
        idx = add_segment(model, stream, pool, segment_bytes(bytes));
    }
    return idx;
}

AllocBlock alloc_model_take(AllocModel *model, int stream, int64_t bytes)
{
    g_assert(stream >= 0 && stream < model->n_streams && bytes >= 0);
    if (bytes == 0) {
        return ALLOC_NOTHING;
    }
    int64_t rounded_bytes = alloc_model_round(bytes);
    Pool pool = pool_of(rounded_bytes);
    gint32 idx = find_block(model, stream, pool, rounded_bytes);
    if (idx == 0) {
        return ALLOC_FAILED;
    }
    int64_t rest_bytes = block_bins_get(&model->blocks, idx)->bytes - rounded_bytes;
    if (rest_bytes >= least_rest(model, pool)) {
        split(model, idx, rounded_bytes);
    }
    Block *block = block_bins_edit(&model->blocks, idx);
    block->is_used = TRUE;
    block->requested_bytes = bytes;
    AllocStats *stats = &model->stats;
    stats->requested_bytes += bytes;
    stats->allocated_bytes += block->bytes;
    stats->allocated_bytes_max = MAX(stats->allocated_bytes_max, stats->allocated_bytes);
    stats->n_blocks++;
    stats->n_blocks_max = MAX(stats->n_blocks_max, stats->n_blocks);
    return idx;
}

/* A block swallows the one behind it; both are on no shelf. */
static void swallow(AllocModel *model, gint32 idx, gint32 after_idx)
{
    Block *block = block_bins_edit(&model->blocks, idx), *after = block_bins_get(&model->blocks, after_idx);
    move_tail(model, block->shelf, after_idx, idx);
    block->bytes += after->bytes;
    block->after = after->after;
    if (block->after != 0) {
        block_bins_edit(&model->blocks, block->after)->before = idx;
    }
    block_bins_drop(&model->blocks, after_idx);
}

void alloc_model_give(AllocModel *model, AllocBlock idx)
{
    if (idx == ALLOC_NOTHING) {
        return;
    }
    Block *block = block_bins_edit(&model->blocks, idx);
    g_assert(block->is_used);
    block->is_used = FALSE;
    model->stats.requested_bytes -= block->requested_bytes;
    model->stats.allocated_bytes -= block->bytes;
    model->stats.n_blocks--;
    int shelf = block->shelf;
    gint32 before = block->before, after = block->after;
    if (after != 0 && !block_bins_get(&model->blocks, after)->is_used) {
        block_bins_take(&model->blocks, shelf, after);
        swallow(model, idx, after);
    }
    if (before != 0 && !block_bins_get(&model->blocks, before)->is_used) {
        block_bins_take(&model->blocks, shelf, before);
        swallow(model, before, idx);
        idx = before;
    }
    block_bins_put(&model->blocks, shelf, idx);
}

int64_t alloc_model_address(const AllocModel *model, AllocBlock block)
{
    return block_bins_get(&model->blocks, block)->address;
}

int64_t alloc_model_block_bytes(const AllocModel *model, AllocBlock block)
{
    return block == ALLOC_NOTHING ? 0 : block_bins_get(&model->blocks, block)->bytes;
}

void alloc_model_release_cached(AllocModel *model)
{
    if (model->expandable) {
        return;
    }
    for (gint32 idx = 1; idx <= block_bins_n_places(&model->blocks); idx++) {
        Block *block = block_bins_get(&model->blocks, idx);
        if (block->bytes > 0 && !block->is_used && block->before == 0 && block->after == 0) {
            model->stats.reserved_bytes -= block->bytes;
            model->stats.n_segments--;
            block_bins_take(&model->blocks, block->shelf, idx);
            block_bins_drop(&model->blocks, idx);
        }
    }
}

const AllocStats *alloc_model_stats(const AllocModel *model)
{
    return &model->stats;
}

void alloc_model_reset_peaks(AllocModel *model)
{
    model->stats.allocated_bytes_max = model->stats.allocated_bytes;
    model->stats.reserved_bytes_max = model->stats.reserved_bytes;
    model->stats.n_blocks_max = model->stats.n_blocks;
}

/* What is wrong with one block and the one behind it; NULL when nothing is. */
static const char *find_block_fault(const AllocModel *model, gint32 idx)
{
    const Block *block = block_bins_get(&model->blocks, idx);
    if (block->bytes % ALLOC_ROUND != 0) {
        return "a block is no multiple of 512 bytes";
    }
    if (block_bins_holds(&model->blocks, block->shelf, idx) == block->is_used) {
        return "a free block is on no shelf, or a used one is";
    }
    if (block->after != 0) {
        const Block *after = block_bins_get(&model->blocks, block->after);
        if (after->address != block->address + block->bytes || after->before != idx) {
            return "neighbours do not touch";
        }
        if (!block->is_used && !after->is_used) {
            return "two free neighbours were not joined";
        }
        if (after->shelf != block->shelf || after->pool != block->pool) {
            return "a segment serves two streams or pools";
        }
    }
    return NULL;
}

const char *alloc_model_find_fault(const AllocModel *model)
{
    int64_t used_bytes = 0, all_bytes = 0, n_segments = 0;
    for (gint32 idx = 1; idx <= block_bins_n_places(&model->blocks); idx++) {
        const Block *block = block_bins_get(&model->blocks, idx);
        if (block->bytes == 0) {
            continue;
        }
        const char *fault = find_block_fault(model, idx);
        if (fault != NULL) {
            return fault;
        }
        used_bytes += block->is_used ? block->bytes : 0;
        all_bytes += block->bytes;
        n_segments += block->before == 0 ? 1 : 0;
    }
    if (used_bytes != model->stats.allocated_bytes || all_bytes != model->stats.reserved_bytes ||
        n_segments != model->stats.n_segments) {
        return "the counters are not the sums over the blocks";
    }
    return used_bytes > all_bytes || all_bytes > model->capacity_bytes ? "more than there is" : NULL;
}
