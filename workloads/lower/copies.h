/*
 * Copies of experts: what keeps them equal, and what moves them.
 *
 * Every copy gets the gradient of the rows that it computed. Once per step, before the optimizer, the gradient shards of an
 * expert's copies are summed among the ranks that hold them, in place; equal gradients and equal states keep the copies equal.
 */
#pragma once

#include "workloads/lower/lowering.h"

/* Appends the sums over copies, layer by layer; nothing without redundant experts. The emitter stands in the optimizer phase. */
void copies_reduce(Lowering *lowering);

/* Bytes of a rank's shard of one slot of an expert in a MoE layer (of the fullest kind): weights and optimizer state. */
int64_t copies_slot_bytes(const Plan *plan, const ModelGraph *graphs);

/*
 * Time of exchanging the experts' slots among the ranks of an EP group: bytes[peer] of the busiest rank's send side, by rank
 * of the group. Closed form, as an all-to-all.
 */
CollPrice copies_exchange_price(const Plan *plan, const int64_t *bytes, int64_t self);
