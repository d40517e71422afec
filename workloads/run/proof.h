/*
 * What the halves of a plan proof share: the plan, its graphs, parameters and data. Fields are borrowed.
 */
#pragma once

#include "workloads/plan/routing.h"
#include "workloads/run/choices.h"
#include "workloads/run/plan-proof.h"
#include "workloads/run/virtual-ranks.h"

typedef struct ProofWorld {
    const Plan *plan;
    const ModelGraph *graphs;
    const VirtualSource *source;
    VirtualOptions options;
    const Choices *choices;       /* of measured loads, or NULL */
    const PlanMutation *mutation; /* or NULL */
    int64_t *tokens, *labels; /* of a step; changed */
} ProofWorld;

/* The memory half; fills peak_bytes. */
gboolean proof_memory(const ProofWorld *proof, PlanProof *result, GError **error);
