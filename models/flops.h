/*
 * Model FLOPs per token, added up from the costs of the operators of its graphs: matrix products and recurrences alone,
 * as utilisation figures count them. Memory-bound operators (norms, activations, copies) and the softmax of attention
 * are left out; causal pairs only, every token valid and routed, averaged over a sequence, no vision tower. Backward is
 * what fused kernels do: attention recomputes its scores (5 products against 2).
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "models/block.h"
#include "models/op.h"

typedef struct OpFlops {
    int64_t n_ops; /* in the whole model */
    double forward, backward;
} OpFlops;

typedef struct ModelFlops {
    double forward, backward; /* per token */
    OpFlops by_op[N_OPS];     /* per token */
} ModelFlops;

/* Rows of one sequence of seq_len tokens on one rank without expert parallelism. */
RowCounts model_row_counts(const Model *model, int64_t seq_len);

/* Forward and backward FLOPs of a graph for given rows, added to by_op. */
void graph_flops(const Graph *graph, const RowCounts *rows, double times, OpFlops *by_op);

/* The whole model at a sequence length. */
void model_graph_flops(const ModelGraph *graph, const Model *model, int64_t seq_len, ModelFlops *ret_flops);
