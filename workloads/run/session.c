#include "workloads/run/session.h"

#include "workloads/run/run.h"

struct Session {
    int64_t n_runs;
};

Session *session_new(void)
{
    return g_new0(Session, 1);
}

void session_free(Session *session)
{
    g_free(session);
}

Plan *session_plan(Session *session, json_t *value, const char *name, const char *base_dir, GError **error)
{
    (void)session;
    return plan_from_json(value, name, base_dir, error);
}

Result *session_run(Session *session, const Plan *plan, GError **error)
{
    session->n_runs++;
    return run_plan(plan, NULL, error);
}
