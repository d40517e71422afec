#include <stdlib.h>
#include <string.h>

#include "sim/mem/alloc-inside.h"

/* A tail may become so much larger at most, or smaller, from what it is now. */
static void bound_above(AllocTail *tail, int64_t more)
{
    tail->most = more < G_MAXINT64 - tail->bytes ? MIN(tail->most, tail->bytes + more) : tail->most;
}

static void bound_below(AllocTail *tail, int64_t more)
{
    tail->least = MAX(tail->least, tail->bytes + more);
}

static void pin(AllocTail *tail)
{
    tail->least = tail->most = tail->bytes;
}

static AllocTail *find_watched(const AllocModel *model, gint32 idx)
{
    for (int i = 0; i < model->n_watched; i++) {
        if (model->watched[i].block == idx) {
            return &model->watched[i];
        }
    }
    return NULL;
}

/* Two tails may move towards each other: each by less than half of what lies between them. */
static int64_t half_gap(int64_t gap)
{
    return MAX(gap / 2 / ALLOC_ROUND * ALLOC_ROUND - ALLOC_ROUND, 0);
}

/* The tail itself is taken: no other block may become a better fit, and what is left over must stay a block, or stay
 * none. */
static void watch_taken(AllocModel *model, int shelf, AllocTail *tail, int64_t bytes, int64_t least_rest)
{
    int64_t have = block_bins_get(&model->blocks, tail->block)->bytes;
    gint32 next;
    int64_t above = block_bins_next_bytes(&model->blocks, shelf, tail->block, &next);
    if (have - bytes < least_rest) {
        pin(tail);
        return;
    }
    bound_below(tail, bytes + least_rest - have);
    if (next != 0) {
        bound_above(tail,
                    find_watched(model, next) != NULL ? half_gap(above - have) : MAX(above - have - ALLOC_ROUND, 0));
    }
}

void alloc_watch_choice(AllocModel *model, int shelf, gint32 chosen, int64_t bytes, int64_t least_rest)
{
    if (!(model->watched_shelves >> shelf & 1u)) {
        return;
    }
    AllocTail *other = find_watched(model, chosen);
    for (int i = 0; i < model->n_watched; i++) {
        AllocTail *tail = &model->watched[i];
        const Block *last = block_bins_get(&model->blocks, tail->block);
        if (last->shelf != shelf || last->is_used) {
            continue;
        }
        if (tail == other) {
            watch_taken(model, shelf, tail, bytes, least_rest);
        } else if (last->bytes < bytes) {
            bound_above(tail, bytes - ALLOC_ROUND - last->bytes);
        } else {
            int64_t gap = last->bytes - block_bins_get(&model->blocks, chosen)->bytes;
            bound_below(tail, -(other != NULL ? half_gap(gap) : MAX(gap - ALLOC_ROUND, 0)));
            if (other != NULL) {
                bound_above(other, half_gap(gap));
            }
        }
        if (chosen == 0 && model->expandable) {
            pin(tail); /* it grows by what is missing */
        }
    }
}

void alloc_model_watch(AllocModel *model, AllocTail *tails, int n)
{
    model->watched = tails;
    model->n_watched = n;
    model->watched_shelves = 0;
    for (int i = 0; i < n; i++) {
        tails[i].least = 0;
        tails[i].most = G_MAXINT64;
        model->watched_shelves |= (uint64_t)1 << block_bins_get(&model->blocks, tails[i].block)->shelf;
    }
}

static size_t tails_bytes(const AllocModel *model)
{
    return sizeof *model->tails * (size_t)(model->n_streams * N_POOLS);
}

void alloc_model_copy(AllocModel *to, const AllocModel *from)
{
    g_assert(to->n_streams == from->n_streams);
    to->capacity_bytes = from->capacity_bytes;
    to->next_address = from->next_address;
    to->expandable = from->expandable;
    to->n_watched = 0;
    to->stats = from->stats;
    memcpy(to->tails, from->tails, tails_bytes(from));
    block_bins_copy(&to->blocks, &from->blocks);
}

void alloc_model_mark(AllocModel *model)
{
    model->stats_marked = model->stats;
    model->next_address_marked = model->next_address;
    memcpy(model->tails_marked, model->tails, tails_bytes(model));
    block_bins_mark(&model->blocks);
}

void alloc_model_rewind(AllocModel *model)
{
    model->stats = model->stats_marked;
    model->next_address = model->next_address_marked;
    memcpy(model->tails, model->tails_marked, tails_bytes(model));
    block_bins_rewind(&model->blocks);
}

/* A block in two words: where, as it was or as it is; size, shelf and use. */
typedef struct BlockWords {
    int64_t address, rest;
} BlockWords;

static void append_words(GArray *words, const Block *block, gboolean was)
{
    BlockWords packed = {block->address * 2 + (was ? 0 : 1), block->bytes << 16 | block->shelf << 1 | block->is_used};
    g_array_append_vals(words, &packed, 2);
}

static int by_address(const void *a, const void *b)
{
    const BlockWords *x = a, *y = b;
    return x->address < y->address ? -1 : x->address > y->address;
}

/* Leaves out the blocks that are as they were: two neighbours in the list. Returns how many words remain. */
static guint drop_equal(BlockWords *list, guint n)
{
    guint kept = 0;
    for (guint i = 0; i < n; i++) {
        gboolean is_pair = i + 1 < n && list[i].address % 2 == 0 && list[i + 1].address == list[i].address + 1;
        if (is_pair && list[i].rest == list[i + 1].rest) {
            i++;
        } else {
            list[kept++] = list[i];
        }
    }
    return 2 * kept;
}

/* Whether a block lies in a segment that came after the mark. */
static gboolean is_new(const AllocModel *model, const Block *block)
{
    return !model->expandable && block->address >= model->next_address_marked;
}

/* Where a block is: its address, or past all addresses a range for each new segment by its order. */
static int64_t place_of(const AllocModel *model, const Block *block)
{
    int64_t n = 0;
    if (!is_new(model, block)) {
        return block->address;
    }
    while (n + 1 < (int64_t)model->starts->len && g_array_index(model->starts, int64_t, n + 1) <= block->address) {
        n++;
    }
    return (model->n_streams * N_POOLS + 1 + n) * ALLOC_RANGE + block->address - g_array_index(model->starts, int64_t, n);
}

void alloc_model_append_place(const AllocModel *model, AllocBlock idx, GArray *words)
{
    int64_t place = place_of(model, block_bins_get(&model->blocks, idx));
    g_array_append_val(words, place);
}

static int by_word(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Whether a block, if it is one, stands or stood on one of these shelves. */
static gboolean is_of(const Block *block, guint32 shelves)
{
    return block->bytes > 0 && (shelves >> block->shelf & 1u);
}

static void add_start(AllocModel *model, guint32 shelves, gint32 idx)
{
    const Block *block = &model->blocks.blocks[idx];
    if (is_of(block, shelves) && block->before == 0 && is_new(model, block)) {
        g_array_append_val(model->starts, block->address);
    }
}

/* Where the segments of some shelves start that came after the mark. */
static void find_starts(AllocModel *model, guint32 shelves)
{
    const BlockBins *bins = &model->blocks;
    g_array_set_size(model->starts, 0);
    for (guint i = 0; i < bins->n_saved; i++) {
        add_start(model, shelves, bins->saved[i].idx);
    }
    for (gint32 idx = bins->n_blocks_marked; idx < bins->n_blocks; idx++) {
        add_start(model, shelves, idx);
    }
    if (model->starts->len > 1) {
        qsort(model->starts->data, model->starts->len, sizeof(int64_t), by_word);
    }
}

/* A block as it is now; one at the end of what came after the mark becomes a tail, with an open size (its place in
 * `least`). */
static void append_now(const AllocModel *model, guint32 shelves, gint32 idx, GArray *words, AllocTail *tails, int *n_tails)
{
    Block block = model->blocks.blocks[idx];
    if (!is_of(&block, shelves)) {
        return;
    }
    gboolean is_last = is_new(model, &block) || (model->expandable && model->tails[block.shelf] == idx);
    block.address = place_of(model, &block);
    if (!block.is_used && block.after == 0 && is_last) {
        if (*n_tails < 0 || *n_tails == ALLOC_TAILS_MAX) {
            *n_tails = -1;
            return;
        }
        tails[(*n_tails)++] = (AllocTail){.block = idx, .bytes = block.bytes, .least = block.address};
        block.bytes = ALLOC_ROUND; /* some size */
    }
    append_words(words, &block, FALSE);
}

static int by_place(const void *a, const void *b)
{
    return by_word(&((const AllocTail *)a)->least, &((const AllocTail *)b)->least);
}

int alloc_model_append_change(AllocModel *model, guint32 shelves, GArray *words, AllocTail *ret_tails)
{
    const BlockBins *bins = &model->blocks;
    guint first = words->len;
    int n_tails = 0;
    find_starts(model, shelves);
    for (guint i = 0; i < bins->n_saved; i++) {
        const SavedBlock *saved = &bins->saved[i];
        if (is_of(&saved->block, shelves)) {
            append_words(words, &saved->block, TRUE);
        }
        append_now(model, shelves, saved->idx, words, ret_tails, &n_tails);
    }
    for (gint32 idx = bins->n_blocks_marked; idx < bins->n_blocks; idx++) {
        append_now(model, shelves, idx, words, ret_tails, &n_tails);
    }
    BlockWords *list = (BlockWords *)(void *)&g_array_index(words, int64_t, first);
    guint n = (words->len - first) / 2;
    if (n > 1) {
        qsort(list, n, sizeof *list, by_address);
    }
    g_array_set_size(words, first + drop_equal(list, n));
    if (n_tails > 1) {
        qsort(ret_tails, (size_t)n_tails, sizeof *ret_tails, by_place);
    }
    return n_tails;
}
