/*
 * Drawn proofs: random plans, reduced and proven one after the other; what fails is made small.
 */
#pragma once

#include "workloads/run/plan-proof.h"
#include "workloads/run/shrink.h"

/*
 * Reads a plan object, reduces it and proves n_steps steps of its program. proof is filled (plan_proof_clear), reduced
 * (may be NULL) receives what was reduced. FALSE and an error, too, when the plan is not legal.
 */
gboolean drawn_prove(json_t *object, int64_t n_steps, const PlanMutation *mutation, PlanProof *ret_proof, ShrinkReport *ret_reduced,
                     GError **error);

/*
 * The smallest plan that fails as that one does (after at most DRAWN_TRIES proofs), with what it fails by; new reference.
 */
enum { DRAWN_TRIES = 300 };
json_t *drawn_minimise(json_t *object, int64_t n_steps, const PlanMutation *mutation, char **ret_message);
