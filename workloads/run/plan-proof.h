/*
 * Plan proof: a reduced plan's program, run in values on virtual ranks, against the single-rank reference.
 */
#pragma once

#include "workloads/lower/program.h"
#include "workloads/plan/plan.h"

typedef struct PlanProof {
    int64_t n_ranks, n_steps, n_params, n_instrs;
    double worst_loss, worst_grad, worst_param; /* relative differences */
    char *worst_at;                             /* where the worst gradient or parameter was */
    int64_t peak_bytes;                         /* of the fullest rank, equal to the ledger's */
} PlanProof;

void plan_proof_clear(PlanProof *proof);

/* Changes a program before it runs, to see whether that is noticed. */
typedef struct PlanMutation {
    void (*apply)(void *self, Program *program);
    void *self;
} PlanMutation;

/*
 * Runs n_steps steps of an already reduced plan and compares loss, every gradient, every parameter and expert loads with
 * the reference (1e-9 of the largest value of each tensor); then one more run of one step in which every buffer must be as
 * large as its value, and whose peaks must be the ledger's. FALSE with what differs first. mutation may be NULL.
 */
gboolean plan_proof_run(const Plan *plan, int64_t n_steps, uint64_t seed, const PlanMutation *mutation, PlanProof *ret_proof,
                        GError **error);
