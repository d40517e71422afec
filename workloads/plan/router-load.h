/*
 * Router load: the popularity of experts in a layer whose router is the model's own operator, with random weights.
 *
 * Hidden states are drawn at a reduced width, weights likewise; scores, bias, group limit and choice are the operator's. A
 * part of every hidden state is common to all tokens and a part to those of a sequence, in the proportion that measured
 * routers at initialisation show. The counts of the sample become shares without its scatter (load_from_sample), which the
 * routing then draws whole tokens of full size around.
 */
#pragma once

#include "workloads/plan/routing.h"

/* Share of each expert in a table of layers: ret_share[experts]. */
void router_load(const RoutingSpec *spec, int table, double *ret_share);
