/*
 * Grouped GEMM: one matrix product per local expert, y[rows of e] = x[rows of e] We^t.
 *
 * Rows are sorted by expert; RowCounts.local_expert_rows says how many each has (NULL: an even split, the remainder
 * to the first). Backward writes a zero weight gradient for an expert without rows.
 */
#pragma once

#include "models/op.h"

typedef struct GroupedGemmAttr {
    int64_t experts; /* of the model; this rank holds experts / ep_size of them */
    double scale;    /* of the product: LoRA's alpha / r; 1 otherwise */
} GroupedGemmAttr;

/*
 * Adds y [RECEIVED, out] from x [RECEIVED, in] (or [SLOTS, in] without expert parallelism). The parameter
 * "<name>.weight" is [experts, out, in], PARAM_EXPERT. Value runs take the local part [experts / ep_size, out, in].
 */
int grouped_gemm_add(Graph *graph, const char *name, int x, int64_t out, int64_t experts);

/* The same as an adapter: parameter "<name>.weight", trainable under freeze_base, is_adapter; product times scale. */
int grouped_gemm_add_adapter(Graph *graph, const char *name, int x, int64_t out, int64_t experts, double scale);

/* Rows of local expert e in the chunk of a view's operator; n_local of them. */
int64_t grouped_gemm_rows(const OpView *view, int64_t n_local, int64_t e);

/* Local experts that have rows. */
int64_t grouped_gemm_busy(const OpView *view, int64_t n_local);
