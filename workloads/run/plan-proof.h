/*
 * Plan proof: a reduced plan's program, run in values on virtual ranks, against the single-rank reference.
 */
#pragma once

#include "workloads/lower/program.h"
#include "workloads/plan/plan.h"
#include "workloads/plan/routing.h"

typedef struct PlanProof {
    int64_t n_ranks, n_steps;
    int64_t n_instrs;                           /* a step and rank */
    int64_t n_ops, n_chains;                    /* operators of a forward pass; of them chains of framework operators */
    int64_t n_layer_losses;                     /* of a step, beside the main one */
    int64_t n_params;                           /* gradients and parameters compared, over all steps and replicas */
    double bound;                               /* of the relative differences */
    double worst_loss, worst_grad, worst_param; /* relative differences */
    char *worst_at;                             /* where the worst gradient or parameter was */
    int64_t n_ledger;                           /* instructions of all ranks after which held memory was the ledger's */
    gboolean is_measured;                       /* routers sent what the plan's measured loads, reduced, say */
    int64_t n_exchanged,
        exchanged_bytes; /* collectives of all ranks whose bytes were those that they are priced with */
    int64_t n_ordered;                          /* pairs of accesses that exclude one another, in order by clocks and by sets */
    int64_t peak_bytes;                         /* of the fullest rank, equal to the ledger's */
    double peak_time_s; /* when that is in a step of the reduced program, by the simulation in time */
    char *peak_at;                              /* "backward of layer 2, mlp.down_proj", or NULL */
} PlanProof;

void plan_proof_clear(PlanProof *proof);

/* Where a proof has experts and what they take, from loads drawn as the plan says; NULL where nothing depends on it. */
Routing *plan_proof_routing(const Plan *plan);

/* Changes programs before they run, to see whether that is noticed: everyone's, or that of the first rank alone. */
typedef struct PlanMutation {
    void (*apply)(void *self, Program *program);
    void *self;
    gboolean first_rank_only;
} PlanMutation;

/*
 * Runs n_steps steps of an already reduced plan and compares loss, every gradient, every parameter and expert loads with
 * the reference (1e-9 of the largest value of each tensor); then one more run of one step in which every buffer must be as
 * large as its value, and memory and its peak those of the ledger after every instruction. FALSE with what differs first. mutation may be NULL.
 */
gboolean plan_proof_run(const Plan *plan, int64_t n_steps, uint64_t seed, const PlanMutation *mutation, PlanProof *ret_proof,
                        GError **error);
