/*
 * Expert pass: permute, grouped GEMM and unpermute as one, y[t] = sum over kept choices (t, j) of w[t, j] We x[t].
 *
 * Expert by expert, tiles of a few rows are gathered, multiplied and added to their tokens; the permuted rows and the
 * experts' outputs, [SLOTS, in] and [SLOTS, out], never exist as a whole. Backward makes with U = dy[token] We of a tile
 * all three gradients: dx[token] += w U, dw = U . x[token], dWe += (w dy)t x. The unfused chain of the operators permute,
 * grouped_gemm and unpermute gives the same numbers up to the order of sums (a token's experts are added in rising expert
 * here, in rising choice there).
 *
 * What it reads and writes: each slot's x row once, each busy expert's weight once, y read and written once per slot.
 */
#pragma once

#include <stdint.h>

typedef struct ExpertPass {
    int64_t n_tokens, top_k, experts;
    int64_t in, out;
    const int64_t *order;  /* of a router: slot -> token * k + choice */
    const int64_t *counts; /* [experts] slots of each expert */
} ExpertPass;

/* x [N, in], weights [N, k], w [experts, out, in]; y [N, out] is overwritten. */
void expert_pass_forward_f64(const ExpertPass *pass, const double *x, const double *weights, const double *w, double *y);
void expert_pass_forward_f32(const ExpertPass *pass, const float *x, const float *weights, const float *w, float *y);

/* Gradients of y: dx [N, in], dweights [N, k] (0 where dropped), dw [experts, out, in]; all overwritten, any may be NULL. */
void expert_pass_backward_f64(const ExpertPass *pass, const double *x, const double *weights, const double *w, const double *dy,
                              double *dx, double *dweights, double *dw);
void expert_pass_backward_f32(const ExpertPass *pass, const float *x, const float *weights, const float *w, const float *dy,
                              float *dx, float *dweights, float *dw);
