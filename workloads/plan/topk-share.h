/*
 * Top-k share: the probability that each of n items is among the k best of noisy scores, without drawing.
 *
 * Item r (from 0) scores X_r - exponent * log(r + 1), X_r = 0.7 Z + G with Z standard normal (the spread of a token's
 * log-scores) and G standard Gumbel (the noise of selection). With tail F(x) = P(X > x), p_r(x) = P(item r above x),
 * and the items independent,
 *
 *     share_r = integral over x of density_r(x) * P(fewer than k of the others are above x).
 *
 * The inner probability is that of a Poisson-binomial sum, by exact convolution up to k; leaving item r out is division
 * of the generating polynomial by (1 - p_r + p_r t), done forward where p_r is at most a half (stable), and by leaving
 * it out of the product in the few other places.
 */
#pragma once

#include <stdint.h>

/* ret_share[n], falling, between 0 and 1, sum k. Cost: some n k operations times 80 points. */
void topk_share_zipf(int64_t n, int64_t k, double exponent, double *ret_share);
