/*
 * Replacement: what it costs to place the experts anew by the loads of a window of steps, and what it gains.
 *
 * Two windows in a row are drawn from the plan's loads: the experts' shares, scattered as so many tokens and sequences
 * scatter. The placement by the first is replaced by that by the second. A slot whose expert changes gets weights and
 * optimizer state from the first slot that held it; every rank of an expert-FSDP group moves its shard. Moves of all layers
 * travel in one exchange.
 */
#pragma once

#include "models/block.h"
#include "sim/base/quantity.h"
#include "workloads/plan/plan.h"

typedef struct Replacement {
    int64_t n_moved;        /* slots, over all layers of one expert-parallel group */
    int64_t bytes_per_rank; /* that the busiest rank sends or receives */
    SimTime move_ns;
    double load_before, load_after; /* busiest rank over the mean in the second window, mean over layers: old and new placement */
} Replacement;

/* A plan with placement eplb and replace_every steps. */
void replacement_estimate(const Plan *plan, const ModelGraph *graphs, Replacement *ret_replacement);
