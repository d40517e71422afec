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

/* Of one of the plans whose steps are as short as any that a run tries. */
static gboolean bound_trial(Session *session, const Plan *plan, gboolean is_open, const ModelGraph *graphs, Bound *ret_bound, GError **error)
{
    RunGroups groups;
    if (!run_groups_init(&groups, session->runs, plan, graphs, error)) {
        return FALSE;
    }
    const Program *program = g_ptr_array_index(groups.programs, 0);
    bound_of_program(program, ret_bound);
    /* a hottest program's rank is the hottest in every layer at once, and none holds all of that; an open plan holds what it finds */
    if (groups.routings->len > 0 || is_open) {
        ret_bound->peak_bytes = ret_bound->layers_bytes = lower_static_bytes(program);
    }
    run_groups_clear(&groups);
    return TRUE;
}

gboolean session_bound(Session *session, const Plan *plan, Bound *ret_bound, double *ret_flops_per_token, GError **error)
{
    run_cache_trim(session->runs);
    const ModelGraph *graphs = lower_cache_graphs(session->runs->lowered, plan);
    Bound least = {G_MAXINT64, G_MAXINT64, G_MAXINT64, G_MAXINT64};
    for (size_t i = 0; i < trials_n_bounds(plan); i++) {
        Plan trial = trials_bound(plan, i);
        Bound bound;
        if (!bound_trial(session, &trial, plan_is_open(plan), graphs, &bound, error)) {
            return FALSE;
        }
        least = (Bound){MIN(least.step_ns, bound.step_ns), MIN(least.layers_ns, bound.layers_ns),
                        MIN(least.peak_bytes, bound.peak_bytes), MIN(least.layers_bytes, bound.layers_bytes)};
    }
    *ret_bound = least;
    if (ret_flops_per_token != NULL) {
        const PlanFacts *facts = run_cache_facts(session->runs, plan, graphs);
        *ret_flops_per_token = facts->flops.forward + facts->flops.backward;
    }
    return TRUE;
}

Result *session_run(Session *session, const Plan *plan, GError **error)
{
    return run_plan_cached(session->runs, plan, NULL, error);
}
