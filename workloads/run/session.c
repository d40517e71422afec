#include "workloads/run/session.h"

#include "workloads/run/groups.h"
#include "workloads/run/run-cache.h"
#include "workloads/run/trials.h"

struct Session {
    PlanCache *plans;
    RunCache *runs;
};

Session *session_new(void)
{
    Session *session = g_new0(Session, 1);
    session->plans = plan_cache_new();
    session->runs = run_cache_new();
    return session;
}

void session_free(Session *session)
{
    if (session != NULL) {
        run_cache_free(session->runs);
        plan_cache_free(session->plans);
        g_free(session);
    }
}

Plan *session_plan(Session *session, json_t *value, const char *name, const char *base_dir, GError **error)
{
    return plan_from_json_cached(session->plans, value, name, base_dir, error);
}

/* Of a plan whose step is as short as any that a run tries. */
static gboolean bound_trial(Session *session, const Plan *plan, gboolean finds, const ModelGraph *graphs, Bound *ret_bound, GError **error)
{
    RunGroups groups;
    if (!run_groups_init_all(&groups, session->runs, plan, graphs, error)) {
        return FALSE;
    }
    const Program *program = g_ptr_array_index(groups.programs, 0);
    bound_of_program(program, ret_bound);
    if (groups.routings->len > 0 || finds) {
        /* a hottest program's rank is the hottest in every layer at once: none holds all of that; an open plan holds what it finds */
        ret_bound->peak_bytes = ret_bound->layers_bytes = ret_bound->static_bytes;
        ret_bound->operators_bytes = 0;
    }
    for (guint i = 1; i < groups.programs->len; i++) { /* which comes first, or decides at all, more than operators have a say in */
        Bound other;
        bound_of_program(g_ptr_array_index(groups.programs, i), &other);
        ret_bound->operators_ns = MIN(ret_bound->operators_ns, other.operators_ns);
        ret_bound->once_ns = MIN(ret_bound->once_ns, other.once_ns);
    }
    run_groups_clear(&groups);
    return TRUE;
}

gboolean session_bound(Session *session, const Plan *plan, Bound *ret_bound, GError **error)
{
    run_cache_trim(session->runs, plan);
    const ModelGraph *graphs = lower_cache_graphs(session->runs->lowered, plan);
    Plan trial = trials_bound(plan);
    return bound_trial(session, &trial, trials_are_needed(plan), graphs, ret_bound, error);
}

double session_flops_per_token(Session *session, const Plan *plan)
{
    const PlanFacts *facts = run_cache_facts(session->runs, plan, lower_cache_graphs(session->runs->lowered, plan));
    return facts->flops.forward + facts->flops.backward;
}

gboolean session_step(Session *session, const Plan *plan, SimTime *ret_step_ns, GError **error)
{
    RunCache *cache = session->runs;
    RunGroups groups;
    StepTimes times;
    run_cache_trim(cache, plan);
    const ModelGraph *graphs = lower_cache_graphs(cache->lowered, plan);
    if (!run_groups_init(&groups, cache, plan, graphs, error)) {
        return FALSE;
    }
    gboolean ok = step_run_memo(cache->steps, plan, (Program *const *)(void *)groups.programs->pdata, groups.programs->len, &times, error);
    run_groups_clear(&groups);
    *ret_step_ns = ok ? times.step_ns : 0;
    return ok;
}

Result *session_run(Session *session, const Plan *plan, GError **error)
{
    return run_plan_cached(session->runs, plan, NULL, error);
}
