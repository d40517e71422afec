#include "workloads/lower/copy-in.h"

#include "sim/base/quantity.h"

enum { BLOCK_BYTES = 2048, ENTRY_BYTES = 8, PAGE_BYTES = 4096 };

enum {
    MAPPED_BYTES = 32 << 20, /* glibc maps what is larger by itself, whatever it has seen */
    HEAP_BYTES = 64 << 20,   /* of a thread that is not the first */
    SEEN_BYTES = 7500000,    /* largest block that loading the framework maps: 14.3 MB of tables stay, 15.6 do not */
};

void copy_in_add(CopyInTable *table, int64_t chunk_bytes)
{
    int64_t more = quantity_div_up(chunk_bytes, BLOCK_BYTES) * ENTRY_BYTES;
    if (table->bytes + more > table->capacity_bytes) {
        table->outgrown_bytes = table->capacity_bytes;
        table->outgrown_used_bytes = table->bytes;
        table->capacity_bytes = table->bytes + MAX(table->bytes, more);
    }
    table->bytes += more;
}

int64_t copy_in_fresh_bytes(const CopyInTable *table, int64_t largest_bytes)
{
    int64_t copy = table->bytes, together = table->outgrown_bytes + table->capacity_bytes + copy;
    int64_t seen = MAX(MIN(largest_bytes, MAPPED_BYTES), SEEN_BYTES) + PAGE_BYTES; /* with its header, in whole pages */
    if (table->capacity_bytes > MAPPED_BYTES) {
        return table->bytes + (copy > MAPPED_BYTES ? copy : 0) + (table->outgrown_bytes > MAPPED_BYTES ? table->outgrown_used_bytes : 0);
    }
    return together > 2 * seen && together <= HEAP_BYTES ? table->outgrown_used_bytes + table->bytes + copy : 0;
}

SimTime copy_in_host_ns(const Device *device, const CopyInTable *table, int64_t fresh_bytes)
{
    if (device->fsdp_copy_in_bytes_per_s <= 0) {
        return 0;
    }
    SimTime fill = quantity_ns((double)(table->bytes / ENTRY_BYTES * BLOCK_BYTES) / device->fsdp_copy_in_bytes_per_s);
    return fill + quantity_div_up(fresh_bytes, PAGE_BYTES) * device->host_page_ns;
}
