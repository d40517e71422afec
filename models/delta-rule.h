/*
 * The delta rule with decay, for one sequence and one value head: values of KDA and GDN, in both precisions.
 *
 *     S~ = Diag(w_t) S,  e_t = v_t - S~^T k_t,  S = S~ + k_t (beta_t e_t)^T,  o_t = S^T q_t
 *
 * in two forms that judge each other: token by token (delta-recurrent.c), and in chunks (delta-chunk.c: kernels.md 2.3,
 * triangular-solve form), which turns nearly all of the work into matrix products.
 *
 * A decay w = exp(g) lies in [0, 1]. Products of decays stand where the literature has exponentials of sums: they
 * cannot overflow, whatever the gate. Nothing is ever divided by a decay.
 *
 * Names: n rows; dk, dv sizes of a key and a value; C rows per chunk, c rows of the chunk at hand.
 */
#pragma once

#include "models/delta-cost.h"
#include "models/real.h"

/* What the rule reads. Arrays are dense. q is scaled by dk^-1/2 beforehand. */
typedef struct DeltaHead {
    int64_t n, dk, dv, chunk;
    const real *q, *k; /* [n, dk] */
    const real *v;     /* [n, dv] */
    const real *w;     /* [n, dk] */
    const real *beta;  /* [n] */
    const real *state; /* [dk, dv] before the first row; NULL = 0 */
    /*
     * Pair matrices, [n, chunk]: row r of its chunk holds a[r, i] for i < r and p[r, i] for i <= r, zeros behind; the
     * dot products of k_r and q_r with k_i decayed to row r. The chunked form needs them.
     */
    const real *a, *p;
    real *work; /* scratch of delta_work_numel() elements (chunked form) */
} DeltaHead;

/* Gradients of the results; NULL = 0. */
typedef struct DeltaUpstream {
    const real *o;     /* [n, dv] */
    const real *state; /* [dk, dv] after the last row */
} DeltaUpstream;

/* Gradients of what the rule reads, written (pair terms excepted, see delta_chunk_backward). state may be NULL. */
typedef struct DeltaGradients {
    real *q, *k, *g, *v, *beta, *state;
    real *a, *p; /* [n, chunk]; of the pair matrices; chunked form only */
} DeltaGradients;

/* Chunked form: o [n, dv] and the state behind the last row (may be NULL). Returns the FLOPs that it did. */
double REAL_NAME(delta_chunk_forward)(const DeltaHead *head, real *o, real *last_state);

/*
 * Its backward, which makes states and solutions again. da and dp are results; dq, dk and dg then lack what flows
 * through the pair matrices and are to be completed by delta_pairs_backward(), or by GDN's own pair terms. dg is
 * the gradient at the log of the cumulative decay of the chunk, row by row: delta_decay_finish() turns it into the
 * gradient of g.
 */
double REAL_NAME(delta_chunk_backward)(const DeltaHead *head, const DeltaUpstream *up, const DeltaGradients *grads);
double REAL_NAME(delta_decay_finish)(const DeltaHead *head, real *dg);

/* Pair matrices where decays differ by channel, and their backward (adds to dq, dk, dg). */
double REAL_NAME(delta_pairs_forward)(const DeltaHead *head, real *a, real *p);
double REAL_NAME(delta_pairs_backward)(const DeltaHead *head, const DeltaGradients *grads);

/* Token by token; the judge. Backward replays from states kept every `chunk` rows. */
void REAL_NAME(delta_recurrent_forward)(const DeltaHead *head, real *o, real *last_state);
void REAL_NAME(delta_recurrent_backward)(const DeltaHead *head, const DeltaUpstream *up, const DeltaGradients *grads);
