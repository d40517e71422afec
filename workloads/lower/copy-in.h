/*
 * Host time of the copy-in of a group's gradients (torch's chunk_cat).
 *
 * The host tells each block of the kernel, 2 KiB of one rank's chunk, which tensor it belongs to: 8 bytes a block, in a C++
 * vector that is filled tensor by tensor and then copied once. A full vector moves to twice its size, or to what it needs if that
 * is more.
 *
 * Memory that is freed goes back to the system when glibc finds more free bytes together at the end of a heap than twice
 * the largest block that it ever took from the system by itself (at most 32 MiB). The next table's pages are then fresh,
 * and the system clears each when it is first written, which takes several times as long as filling them. Tables of groups that
 * few ranks share are that large: layers of experts, or dense ones of 8,192, on one or two GPUs.
 */
#pragma once

#include "hw/device.h"

typedef struct CopyInTable {
    int64_t bytes;          /* of all entries */
    int64_t capacity_bytes; /* of the vector */
    int64_t outgrown_bytes; /* capacity of the vector before it grew last … */
    int64_t outgrown_used_bytes; /* … and what was written there */
} CopyInTable;

/* Adds the entries of a tensor of which one rank's chunk has so many bytes, padded, in the type of the reduction. */
void copy_in_add(CopyInTable *table, int64_t chunk_bytes);

/*
 * Bytes of fresh pages that one copy-in touches. largest_bytes: capacity of the process's largest table.
 * What does not fit into one heap (64 MiB) does not lie together; vectors above 32 MiB come from the system, each time.
 */
int64_t copy_in_fresh_bytes(const CopyInTable *table, int64_t largest_bytes);

/* Host time of one copy-in, of whose table so many bytes are fresh, before its kernel; 0 if the device does not say what tables cost. */
SimTime copy_in_host_ns(const Device *device, const CopyInTable *table, int64_t fresh_bytes);
