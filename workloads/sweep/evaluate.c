#include "workloads/sweep/evaluate.h"

#include <string.h>

#include "sim/base/error.h"
#include "sim/base/json-read.h"

static const char *const status_names[N_SWEEP_STATUSES] = {"ok", "does_not_fit", "invalid", "left_out"};

const char *sweep_status_name(SweepStatus status)
{
    g_assert(status < N_SWEEP_STATUSES);
    return status_names[status];
}

void sweep_outcome_clear(SweepOutcome *outcome)
{
    g_clear_pointer(&outcome->result, result_free);
    g_clear_pointer(&outcome->reason, g_free);
}

SweepWorker *sweep_worker_new(const Sweep *sweep)
{
    SweepWorker *worker = g_new0(SweepWorker, 1);
    worker->sweep = sweep;
    worker->session = session_new();
    worker->names = sweep_names_new(sweep, worker->session);
    worker->plans = sweep_plans_new(sweep);
    return worker;
}

void sweep_worker_free(SweepWorker *worker)
{
    if (worker != NULL) {
        sweep_plans_free(worker->plans);
        sweep_names_free(worker->names);
        session_free(worker->session);
        g_free(worker);
    }
}

/* Messages begin with the name of the plan, which points have none of. */
static char *reason_of(const GError *error)
{
    const char *text = error->message;
    while (g_str_has_prefix(text, ": ")) {
        text += 2;
    }
    return g_strdup(text);
}

/* What a plan that is too large is told, in one line. */
static char *reason_too_large(const Result *result)
{
    g_autoptr(GString) text = g_string_new(NULL);
    for (guint i = 0; i < result->advice->len; i++) {
        g_string_append_printf(text, "%s%s", i > 0 ? "; " : "", (const char *)g_ptr_array_index(result->advice, i));
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static void run_point(SweepWorker *worker, json_t *object, SweepOutcome *outcome)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = session_plan(worker->session, object, "", worker->sweep->base_dir, &error);
    outcome->result = plan != NULL ? session_run(worker->session, plan, &error) : NULL;
    if (outcome->result == NULL) {
        outcome->status = SWEEP_INVALID;
        outcome->reason = reason_of(error);
    } else if (!outcome->result->fits) {
        outcome->status = SWEEP_DOES_NOT_FIT;
        outcome->reason = reason_too_large(outcome->result);
    }
}

gboolean sweep_point_has_row(SweepWorker *worker, int64_t point)
{
    gboolean allowed = TRUE;
    if (worker->sweep->constraints->len == 0) {
        return TRUE;
    }
    json_t *object = sweep_plans_get(worker->plans, point, NULL);
    return object == NULL || !sweep_names_allow(worker->names, object, &allowed, NULL) || allowed;
}

Plan *sweep_point_plan(SweepWorker *worker, int64_t point)
{
    gboolean allowed = FALSE;
    json_t *object = sweep_plans_get(worker->plans, point, NULL);
    if (object == NULL || !sweep_names_allow(worker->names, object, &allowed, NULL) || !allowed) {
        return NULL;
    }
    return session_plan(worker->session, object, "", worker->sweep->base_dir, NULL);
}

void sweep_evaluate(SweepWorker *worker, int64_t point, SweepOutcome *ret_outcome)
{
    g_autoptr(GError) error = NULL, unknown = NULL;
    gboolean allowed = TRUE;
    *ret_outcome = (SweepOutcome){.status = SWEEP_OK};
    json_t *object = sweep_plans_get(worker->plans, point, &error);
    if (object == NULL) {
        ret_outcome->status = SWEEP_INVALID;
        ret_outcome->reason = reason_of(error);
        return;
    }
    gboolean judged = sweep_names_allow(worker->names, object, &allowed, &unknown);
    if (judged && !allowed) {
        ret_outcome->status = SWEEP_LEFT_OUT;
        return;
    }
    run_point(worker, object, ret_outcome);
    if (!judged && ret_outcome->status != SWEEP_INVALID) { /* else the plan's own mistake says more */
        sweep_outcome_clear(ret_outcome);
        ret_outcome->status = SWEEP_INVALID;
        ret_outcome->reason = g_strdup(unknown->message);
    }
}
