/*
 * Router load: the popularity of experts in a layer whose router is the model's own operator, with random weights.
 *
 * Hidden states are drawn at a reduced width, weights likewise; scores, bias, group limit and choice are the operator's. What
 * is a token's own is drawn once for all layers: their weights are independent, and so are its scores. A
 * part of every hidden state is common to all tokens and a part to those of a sequence, in the proportion that measured
 * routers at initialisation show. The counts of the sample become shares without its scatter (load_from_sample), which the
 * routing then draws whole tokens of full size around.
 */
#pragma once

#include "workloads/plan/routing.h"

/* What tokens have of their own, for all tables of a spec; caller frees. */
double *router_sample(const RoutingSpec *spec);

/* Share of each expert in a table of layers: ret_share[experts]. sample: of router_sample(). */
void router_load(const RoutingSpec *spec, const double *sample, int table, double *ret_share);
