/*
 * Copies between HBM and DDR: pinned staging buffers in host memory, one stream for each direction.
 *
 * A copy is a kernel of its stream like any other: it starts when what its stream waits for is done, takes
 * timing_host_copy_ns() alone and longer beside what shares the link (hw/host-link.h), and moves the values of one buffer into
 * another. The caller orders it: RECORD on the stream that wrote the source and WAIT before, RECORD and WAIT after it.
 * Everything that moves between the tiers goes through here: activations, and states of an optimizer.
 */
#pragma once

#include "workloads/lower/emit.h"

/* A buffer in pinned host memory. */
void emit_alloc_host(Emitter *emitter, Place buffer, int64_t bytes, MemTag tag);

/* Copies `bytes` of a buffer in HBM to one in DDR (STREAM_COPY_OUT), or back (STREAM_COPY_IN). */
void emit_copy_out(Emitter *emitter, Place from, Place to, int64_t bytes);
void emit_copy_in(Emitter *emitter, Place from, Place to, int64_t bytes);

/* The same of static memory, which has no buffers: the transfer alone. */
void emit_transfer_in(Emitter *emitter, int64_t bytes);
void emit_transfer_out(Emitter *emitter, int64_t bytes);

/* FREE of a buffer that a copy still reads or writes: the allocator gives the memory out again when that is done. */
void emit_free_recorded(Emitter *emitter, Place buffer);
