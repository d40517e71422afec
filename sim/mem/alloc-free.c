/* What of an allocator's memory is free, and how much of it nobody else could have. */
#include "sim/base/quantity.h"
#include "sim/mem/alloc-inside.h"

/* Bytes of a free block of an expandable segment that share a page with blocks in use: offset counts from the segment's start. */
static int64_t beside_pages(const Block *block, int64_t offset)
{
    int64_t page = block->pool == POOL_SMALL ? SMALL_PAGE : LARGE_PAGE;
    int64_t first = quantity_round_up(offset, page), end = (offset + block->bytes) / page * page;
    return first < end ? block->bytes - (end - first) : block->bytes;
}

void alloc_model_free_space(const AllocModel *model, AllocFree *ret_free)
{
    *ret_free = (AllocFree){0};
    for (gint32 idx = 1; idx <= block_bins_n_places(&model->blocks); idx++) {
        const Block *block = block_bins_get(&model->blocks, idx);
        if (block->bytes == 0 || block->is_used) {
            continue;
        }
        ret_free->bytes += block->bytes;
        ret_free->largest_bytes = MAX(ret_free->largest_bytes, block->bytes);
        if (model->expandable) {
            ret_free->bound_bytes += beside_pages(block, block->address - (int64_t)(block->shelf + 1) * ALLOC_RANGE);
        } else if (block->before != 0 || block->after != 0) { /* free neighbours are one block: the others are in use */
            ret_free->bound_bytes += block->bytes;
        }
    }
}
