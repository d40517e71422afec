/*
 * Moments: what the allocator of a rank holds at the ends of the phases and at the peak, in a step that is not the first.
 *
 * The ledger (ledger.h) begins with all static memory in one block, which is how much a step needs whatever came before. Here
 * parameters and states of the optimizer are tensors of their own, and history counts: the first step finds nothing cached; its
 * optimizer makes its states at its end, when what the passes needed is free and cached, so that they come to lie among it; later
 * steps find both. Micro-batches that are alike run twice, as in the ledger.
 *
 * Against torch.cuda.memory_stats() of 24 measured steps: tests/reference/h200-fragmentation.csv.
 */
#pragma once

#include "workloads/lower/program.h"
#include "workloads/plan/plan.h"
#include "workloads/run/result.h"

/*
 * capacity_bytes: what the allocator may reserve before it gives cached segments back; 0 = no bound. FALSE when then, too, it
 * finds no free block that is large enough: the error names what for.
 */
gboolean moments_find(const Plan *plan, const Program *program, int64_t capacity_bytes, ResultPhases *ret_phases, GError **error);
