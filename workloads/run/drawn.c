#include "workloads/run/drawn.h"

#include "workloads/run/minimise.h"

gboolean drawn_prove(json_t *object, int64_t n_steps, const PlanMutation *mutation, PlanProof *ret_proof, ShrinkReport *ret_reduced,
                     GError **error)
{
    *ret_proof = (PlanProof){0};
    g_autoptr(Plan) plan = plan_from_json(object, "plan", NULL, error);
    if (plan == NULL) {
        return FALSE;
    }
    ShrinkReport reduced;
    shrink_plan(plan, ret_reduced != NULL ? ret_reduced : &reduced);
    return plan_proof_run(plan, n_steps, 1, mutation, ret_proof, error);
}

typedef struct Fault {
    int64_t n_steps;
    const PlanMutation *mutation;
    char *message;
} Fault;

static gboolean fails(void *self, json_t *object)
{
    Fault *fault = self;
    PlanProof proof;
    GError *error = NULL;
    g_autoptr(Plan) plan = plan_from_json(object, "plan", NULL, NULL);
    gboolean holds = plan == NULL || drawn_prove(object, fault->n_steps, fault->mutation, &proof, NULL, &error);
    if (plan != NULL) {
        plan_proof_clear(&proof);
    }
    if (holds) {
        return FALSE;
    }
    g_free(fault->message);
    fault->message = g_strdup(error->message);
    g_error_free(error);
    return TRUE;
}

json_t *drawn_minimise(json_t *object, int64_t n_steps, const PlanMutation *mutation, char **ret_message)
{
    Fault fault = {n_steps, mutation, NULL};
    json_t *smallest = minimise_plan(object, fails, &fault, DRAWN_TRIES);
    *ret_message = fault.message;
    return smallest;
}
