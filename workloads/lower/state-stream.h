/*
 * State stream: optimizer states that live in DDR pass through HBM while the device makes the step (optimizer.offload with Muon,
 * whose orthogonalisation no host could do in time).
 *
 * A state has a buffer in HBM from its fetch to its return. A fetch runs on STREAM_COPY_IN and is issued one round, or group,
 * ahead of the update that needs it; a return on STREAM_COPY_OUT. Buffers come from the pool of STREAM_COPY_IN, which waits for
 * every return before it may get their memory again: at most two of a kind are alive, and both directions of the link work.
 */
#pragma once

#include "workloads/lower/lowering.h"

/* Allocates the buffer and fetches its states; token: they are there. action: the VALUE of that, with its `op`. */
void state_fetch(Emitter *emitter, Place buffer, Place token, int64_t bytes, ValueAction action, int op);

/* Behind what compute has done so far: states go back to DDR, and the buffer ends. */
void state_return(Emitter *emitter, Place buffer, int64_t bytes, ValueAction action, int op);

/* The updates of everything that is no matrix of Muon's, group by group, with their states. */
void state_stream_groups(Lowering *lowering);

/* What AdamW updates in a group, appended; whole_takes() the rest. */
void lowering_collect_pieces(Lowering *lowering, const GroupSite *site, GArray *pieces);
