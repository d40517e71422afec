/*
 * Hottest rank: whose expert kernels take longest.
 *
 * Between dispatch and combine the ranks of an expert-parallel group compute what they received, and all wait for the last
 * of them. So one rank decides the time of a layer, by the rows of each of its experts, not by their sum alone: many small
 * groups take longer than few large ones.
 */
#pragma once

#include "models/block.h"
#include "workloads/lower/price.h"
#include "workloads/plan/routing.h"

typedef struct Hottest {
    int64_t rank;
    SimTime ns;      /* its kernels in forward, recomputation and backward that rows of experts size */
} Hottest;

/* The hottest rank of a table, in layers of that graph. prices may be NULL. */
Hottest hottest_rank(const Plan *plan, const Graph *graph, const Routing *routing, int64_t moe_layer, PriceList *prices);
