/*
 * Balanced load: the popularity of experts that a rule of balancing leaves after so many steps.
 *
 * Some batches of tokens are drawn and taken in turn: log-scores of spread and noise as the routing has them, minus its skew.
 * Step by step tokens take the k experts with the largest key, and the rule of models/balance.h (or the gradient of the
 * auxiliary loss, as the router loss computes it) moves what it moves. The popularity is measured on a batch that the rule has
 * not seen.
 *
 *     bias      key = sigmoid(l) + b; b by the sign of (mean load - load), rate per step
 *     quantile  key = sigmoid(l) + b; b by quantiles from histograms of 1000 bins
 *     aux_loss  key = l + theta; theta by AdamW on the Switch loss of softmax(l + theta), rate its learning rate. The main
 *               loss is taken as indifferent between experts, so this is the least imbalance that the loss can leave.
 */
#pragma once

#include "workloads/plan/routing.h"

/* ret_share[experts], falling, sum top_k, as routing_popularity. */
void balanced_load(const RoutingSpec *spec, double *ret_share);

/*
 * Shares of counts of n_tokens tokens: what a sample scatters beyond the spread of what it is drawn from is taken out (a
 * linear shrink towards the mean whose factor follows from the variance of counts). Sum top_k.
 */
void load_from_sample(const int64_t *counts, int64_t experts, int64_t top_k, int64_t n_tokens, double *ret_share);
