/*
 * Session: many evaluations, one after the other, that may share what they have in common.
 *
 * A session belongs to one thread. What it remembers (models, clusters, lowered pieces, partial results) changes how long an
 * evaluation takes and never what it yields: the result of a plan is that of run_plan, whatever was evaluated before.
 */
#pragma once

#include "workloads/plan/plan.h"
#include "workloads/run/bound.h"
#include "workloads/run/result.h"

typedef struct Session Session;

Session *session_new(void);
void session_free(Session *session);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Session, session_free)

/*
 * plan_from_json, with what earlier plans of this session loaded already; the plan may outlive the session. Members of the
 * value that are those of the call before are not read again: nobody may change them while the session lives.
 */
Plan *session_plan(Session *session, json_t *value, const char *name, const char *base_dir, GError **error);

/* What the plan's step cannot go below, without running it. Errors as of session_run. */
gboolean session_bound(Session *session, const Plan *plan, Bound *ret_bound, GError **error);

/*
 * The same but for the step and its peak (bound_of_layers), of the first of the sampled expert-parallel groups where their loads
 * differ: less work, and somewhat less than session_bound says. Neither for open plans nor with a cache. Errors as of session_run.
 */
gboolean session_bound_layers(Session *session, const Plan *plan, Bound *ret_bound, GError **error);

/*
 * once_ns and sharded_ns, likewise, which hold for all plans that differ from this one in what is kept, recomputed, cached and
 * offloaded. Errors as of session_run.
 */
gboolean session_bound_shared(Session *session, const Plan *plan, Bound *ret_bound, GError **error);

/* static_bytes of these bounds, for less work still. */
int64_t session_static_bytes(Session *session, const Plan *plan);

/* FLOPs that count as the model's, for one token. */
double session_flops_per_token(Session *session, const Plan *plan);

/*
 * How long the plan's step takes, whatever it holds: what session_run finds, but for experts that are moved between steps. For
 * plans that leave nothing to trials (not open, without a cache). Errors as of session_run.
 */
gboolean session_step(Session *session, const Plan *plan, SimTime *ret_step_ns, GError **error);

/* run_plan without options. */
Result *session_run(Session *session, const Plan *plan, GError **error);
