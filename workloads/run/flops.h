/*
 * Model FLOPs: what the mathematics of a step takes, whatever the kernels, layout and recomputation.
 */
#pragma once

#include "models/block.h"
#include "workloads/plan/plan.h"

typedef struct ModelFlops {
    double forward, backward; /* per token of the sequence length, causal average; frozen weights have no gradient */
} ModelFlops;

/* Sums the fused costs of all operators over one micro-batch and divides by its tokens. */
ModelFlops model_flops_per_token(const Plan *plan, const ModelGraph *graphs);
