/*
 * What the chain of framework operators of the delta rule keeps (delta_eager_saved() in models/delta-cost.h), in
 * values.
 *
 * Kept of each row and value head, one behind the other:
 *   0  for every column of its chunk: the decay from there to the row, and k times it; the same again with q. Columns
 * that the chain masks hold zeros. 1  q (scaled), k, the decay, the decay since the chunk began, q and k times that, k
 * times the decay to the chunk's end, k times the write strength; then v, v times the write strength, the result, and
 * the write strength spread over a value. 2  the inverse's row of the triangular solve, as often as it fits. 3  rows of
 * both pair matrices, of the first times the write strength, and of the inverse.
 *
 * Derivatives read v and the pair matrices from here; q, k and gates are kept by reference besides.
 */
#pragma once

#include "models/delta-heads.h"
#include "models/op.h"

/* Writes what is kept of a head whose rows begin at `start`; arrays hold its inputs, pair matrices and results. */
void REAL_NAME(delta_eager_keep)(const OpRun *run, const DeltaShape *shape, const DeltaArrays *arrays, int64_t start,
                                 int64_t value_head);

/* Reads the head's pair matrices back. */
void REAL_NAME(delta_eager_pairs)(const OpRun *run, const DeltaShape *shape, int64_t start, int64_t value_head,
                                  DeltaArrays *arrays);

/*
 * The run of the fused form inside that of an eager operator: the same, with auxiliary tensors of `fused`'s own beside,
 * and in backward v read back. Release with delta_eager_leave().
 */
typedef struct DeltaEager {
    OpRun run;
    Tensor *own[OP_AUX_MAX + 1];
} DeltaEager;

void REAL_NAME(delta_eager_enter)(const OpRun *run, const DeltaShape *shape, const OpSaved *fused,
                                  DeltaEager *ret_eager);
void REAL_NAME(delta_eager_leave)(DeltaEager *eager);
