/*
 * Loss-free balancing: how the selection bias of a router moves after a step.
 *
 * Sign rule (DeepSeek-V3): a fixed step towards the mean load. Quantile rule (K3): no rate; token t takes expert e
 * exactly when b_e >= r[t, e] = alpha_t - s[t, e] (alpha_t the (k+1)-th largest of s + b, taken as fixed), so the
 * quantile k/E of r over the tokens gives each expert its share; the mean is subtracted, which changes no choice.
 *
 * Symbols: N tokens, E experts, k choices. The quantile rule needs k < E (with k = E there is nothing to balance: the
 * bias stays). Scores and biases are plain doubles.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "models/moe-tables.h"

/* b_e += rate * sign(mean(counts) - counts_e). */
void balance_sign(const int64_t *counts, int64_t experts, double rate, double *bias);

/* Cutoff of each token: alpha[N], the (k+1)-th largest of scores[N, E] + bias. */
void balance_cutoffs(const MoeShape *shape, const double *scores, const double *bias, double *ret_alpha);

/*
 * The quantile rule on all tokens at once: quantile at place k/E (N - 1) of the sorted values, linear between them.
 */
void balance_quantile(const MoeShape *shape, const double *scores, double *bias);

/* The quantile rule from counts: bins of equal width over [min b - 1, max b + 1]; counts of micro-batches and ranks add
 * up. */
typedef struct BalanceHistogram {
    int64_t experts, top_k, n_bins, n_tokens;
    double low, bin_width;
    double *bias;    /* at the start: what the scores were chosen with */
    int64_t *counts; /* [experts, n_bins] */
} BalanceHistogram;

BalanceHistogram *balance_histogram_new(const double *bias, int64_t experts, int64_t top_k, int64_t n_bins);
void balance_histogram_free(BalanceHistogram *histogram);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(BalanceHistogram, balance_histogram_free)

/* Counts the tokens of a micro-batch; values outside the range go to the end bins. */
void balance_histogram_add(BalanceHistogram *histogram, const double *scores, int64_t n_tokens);

/* Adds another's counts (of the same bias, so the same bins). */
void balance_histogram_merge(BalanceHistogram *histogram, const BalanceHistogram *other);

/* New bias[experts]: in the first bin whose cumulative count reaches k/E of the tokens, linear inside it. */
void balance_histogram_update(const BalanceHistogram *histogram, double *ret_bias);
