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

/* Whatever either of two plans does. */
static Bound lesser(const Bound *a, const Bound *b)
{
    return (Bound){
        .step_ns = MIN(a->step_ns, b->step_ns),
        .layers_ns = MIN(a->layers_ns, b->layers_ns),
        .sharded_ns = MIN(a->sharded_ns, b->sharded_ns),
        .once_ns = MIN(a->once_ns, b->once_ns),
        .peak_bytes = MIN(a->peak_bytes, b->peak_bytes),
        .layers_bytes = MIN(a->layers_bytes, b->layers_bytes),
        .static_bytes = MIN(a->static_bytes, b->static_bytes),
    };
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

/* Of a settled view. */
static gboolean bound_first(Session *session, const Plan *view, const ModelGraph *graphs, Bound *ret_bound, GError **error)
{
    RunGroups groups;
    if (!run_groups_init_first(&groups, session->runs, view, graphs, error)) {
        return FALSE;
    }
    bound_of_layers(g_ptr_array_index(groups.programs, 0), ret_bound);
    if (groups.routings->len > 0) { /* as above */
        ret_bound->peak_bytes = ret_bound->layers_bytes = ret_bound->static_bytes;
    }
    run_groups_clear(&groups);
    return TRUE;
}

gboolean session_bound_shared(Session *session, const Plan *plan, Bound *ret_bound, GError **error)
{
    /* which rank is the hottest depends on whether anything runs again */
    const PlanRecompute recomputed[] = {PLAN_RECOMPUTE_NONE, PLAN_RECOMPUTE_FULL};
    run_cache_trim(session->runs, plan);
    const ModelGraph *graphs = lower_cache_graphs(session->runs->lowered, plan);
    for (int i = 0; i < (routing_is_needed(plan) ? 2 : 1); i++) {
        Plan view = trials_recomputing(plan, recomputed[i]);
        Bound bound;
        if (!bound_first(session, &view, graphs, &bound, error)) {
            return FALSE;
        }
        *ret_bound = i == 0 ? bound : lesser(ret_bound, &bound);
    }
    ret_bound->step_ns = ret_bound->layers_ns = ret_bound->sharded_ns;
    ret_bound->peak_bytes = ret_bound->layers_bytes = ret_bound->static_bytes;
    return TRUE;
}

gboolean session_bound_layers(Session *session, const Plan *plan, Bound *ret_bound, GError **error)
{
    g_assert(!plan->has_cache && !plan_is_open(plan));
    run_cache_trim(session->runs, plan);
    return bound_first(session, plan, lower_cache_graphs(session->runs->lowered, plan), ret_bound, error);
}

int64_t session_static_bytes(Session *session, const Plan *plan)
{
    run_cache_trim(session->runs, plan);
    Plan view = trials_recomputing(plan, PLAN_RECOMPUTE_NONE);
    return lower_plan_static_bytes(session->runs->lowered, &view, lower_cache_graphs(session->runs->lowered, plan));
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
