/*
 * What the operators around the delta rule (KDA, GDN) have in common beside values: tensors and parameters, what is kept,
 * costs. They differ in their gate, and in how many heads have pair matrices of their own.
 */
#pragma once

#include "models/delta-cost.h"

/* Places of inputs, outputs and parameters. The gate's input is z of KDA, a of GDN. */
enum {
    DELTA_IN_Q,
    DELTA_IN_K,
    DELTA_IN_V,
    DELTA_IN_GATE,
    DELTA_IN_BETA,
    DELTA_IN_STATE,
    DELTA_N_IN = DELTA_IN_STATE
};

/* What an operator says of itself. */
typedef struct DeltaOp {
    DeltaShape shape;
    int64_t pair_heads;                   /* heads whose pair matrices are kept */
    gboolean normed;                      /* q and k are normed here, and kept so */
    double forward_flops, backward_flops; /* around the core, for all tokens */
} DeltaOp;

/*
 * Adds PREFIX.<operator> on q, k, v, gate and beta; with n_dt_bias > 0 parameters PREFIX.A_log [value_heads] and
 * PREFIX.dt_bias [n_dt_bias], which stay fp32. Returns o: [TOKENS, value_heads x value_dim].
 */
int delta_op_add(Graph *graph, OpKind kind, const char *prefix, const int inputs[DELTA_N_IN], const DeltaShape *shape,
                 int64_t n_dt_bias, const void *attr, size_t attr_bytes);

/*
 * Adds the states before (-1 = zeros) and after each sequence ([SEQUENCES, value_heads x key_dim x value_dim]) to the
 * operator.
 */
void delta_op_add_states(Graph *graph, Op *op, int before, int after);

/* Pair matrices, normed q and k with their reciprocal norms; v, gate and beta by reference (kernels.md 2.6). */
void delta_op_saved(const OpView *view, const DeltaOp *op, OpSaved *ret_saved);

/* The same of the fused form, whichever the operator has. */
void delta_fused_saved(const OpView *view, const DeltaOp *op, OpSaved *ret_saved);

/* Kernels of the passes. Backward makes every gradient at once, needed or not: they share nearly all of the work. */
void delta_op_forward_cost(const OpView *view, const DeltaOp *op, OpCost *ret_cost);
void delta_op_backward_cost(const OpView *view, const DeltaOp *op, OpCost *ret_cost);

/* For samples: the inputs of an operator whose gate is so wide; then its output, states, and rows. */
typedef struct DeltaSample {
    int64_t n_sequences, seq_len;
    gboolean states;
} DeltaSample;

void delta_op_sample_inputs(Graph *graph, const DeltaShape *shape, const char *gate, int64_t gate_width,
                            int ret_inputs[DELTA_N_IN]);
void delta_op_sample_finish(Graph *graph, const DeltaShape *shape, const DeltaSample *sample, int o, RowCounts *rows);
