/*
 * Costs of the chunked delta rule, shared by KDA (a decay per key channel) and GDN (a decay per head).
 *
 * FLOPs are those of the triangular-solve form over causal pairs (kernels.md 2.3 and 2.5), exactly as
 * models/delta-chunk.c does them: 6 dk dv + 2 C (dk + dv) per token and head, and the scaling around the products.
 */
#pragma once

#include "models/op.h"

enum { DELTA_CHUNK = 64, DELTA_BLOCK = 16 }; /* tokens per chunk by default; rows per sub-chunk */

/*
 * Host time of one library call beyond that of one operator, in operators: it issues 10 to 15 kernels from a script.
 * From op_kda.csv, where the device waits: 0.84 ms forward, about 1.6 ms backward.
 */
enum { DELTA_HOST_FORWARD = 26, DELTA_HOST_BACKWARD = 44 };

typedef struct DeltaShape {
    int64_t heads, value_heads, key_dim, value_dim, chunk;
    gboolean per_channel; /* the decay differs by key channel (KDA) */
} DeltaShape;

/* Chunks of all sequences: their number, tokens, and what pair terms sum over. */
typedef struct DeltaSums {
    int64_t n_sequences;
    int64_t n_chunks;
    int64_t n_tokens;
    int64_t squares;     /* sum of c^2 over chunks of c tokens */
    int64_t block_pairs; /* pairs (r, i < r) inside sub-chunks of DELTA_BLOCK rows */
    int64_t block_reach; /* for every sub-chunk, the rows of its chunk in front of it */
    int64_t late_rows;   /* rows that are not in the first sub-chunk of their chunk */
    int64_t early_rows;  /* rows that are not in the last one */
    int64_t early_reach; /* block_reach without the last sub-chunk of each chunk */
} DeltaSums;

DeltaSums delta_sums(const RowCounts *rows, int64_t chunk);

/*
 * Elements of scratch that the values of one head need (models/delta-rule.h), forward and backward: states before
 * every chunk, x and u of every row, and what one chunk takes.
 */
int64_t delta_work_numel(const DeltaShape *shape, int64_t n_rows);

/*
 * FLOPs of the core, from normed and scaled q, k, v, decays and beta to o, pair matrices included; and of its backward
 * with the pair matrices kept: twice the products of the forward pass, and its states again.
 */
double delta_forward_flops(const DeltaShape *shape, const DeltaSums *sums);
double delta_backward_flops(const DeltaShape *shape, const DeltaSums *sums);

/*
 * What a fused library implementation holds beside inputs, outputs, kept tensors and gradients, in bytes (the
 * composition of flash-linear-attention's chunk kernels, which reproduces measured peaks: see truth of op_kda).
 */
int64_t delta_forward_workspace(const DeltaShape *shape, const DeltaSums *sums);
int64_t delta_backward_workspace(const DeltaShape *shape, const DeltaSums *sums);

/* The chain of framework kernels of the naive chunked form, from raw inputs to o, and what autograd keeps of it. */
void delta_eager_forward(const DeltaShape *shape, const DeltaSums *sums, OpCost *cost);
void delta_eager_backward(const DeltaShape *shape, const DeltaSums *sums, OpCost *cost);
void delta_eager_saved(const DeltaShape *shape, OpSaved *saved);
