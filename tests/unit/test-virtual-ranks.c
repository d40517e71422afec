#include "tests/check.h"

#include "workloads/plan/plan.h"
#include "workloads/run/plan-proof.h"
#include "workloads/run/shrink.h"

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        GError *error = NULL;
        g_autoptr(Plan) plan = plan_load(argv[i], &error);
        if (plan == NULL) { printf("%s: %s\n", argv[i], error->message); continue; }
        g_autofree char *what = shrink_plan(plan);
        PlanProof proof;
        gboolean ok = plan_proof_run(plan, 2, 1, NULL, &proof, &error);
        printf("%s %s: %s\n   %s loss %.2g grad %.2g param %.2g\n", ok ? "ok" : "NOT", argv[i], what, ok ? "" : error->message, proof.worst_loss, proof.worst_grad, proof.worst_param);
        fflush(stdout);
        plan_proof_clear(&proof);
        g_clear_error(&error);
    }
    return 0;
}
