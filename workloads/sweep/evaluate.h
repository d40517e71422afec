/*
 * Evaluation of one point of a sweep: to a result, or to why there is none.
 */
#pragma once

#include "workloads/run/session.h"
#include "workloads/sweep/sweep-names.h"
#include "workloads/sweep/sweep.h"

typedef enum SweepStatus {
    SWEEP_OK,
    SWEEP_DOES_NOT_FIT,
    SWEEP_INVALID,
    SWEEP_LEFT_OUT, /* by a constraint: no row */
    N_SWEEP_STATUSES
} SweepStatus;

/* "ok", "does_not_fit", "invalid". */
const char *sweep_status_name(SweepStatus status);

typedef struct SweepOutcome {
    SweepStatus status;
    Result *result; /* NULL when invalid or left out */
    char *reason;   /* which rule failed and the nearest legal value, or what would make it fit; NULL when ok */
} SweepOutcome;

void sweep_outcome_clear(SweepOutcome *outcome);

/* What a thread keeps between points. */
typedef struct SweepWorker {
    const Sweep *sweep;
    Session *session;
    SweepNames *names;
    SweepPlans *plans;
} SweepWorker;

SweepWorker *sweep_worker_new(const Sweep *sweep);
void sweep_worker_free(SweepWorker *worker);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SweepWorker, sweep_worker_free)

/* Whether the point has a row: constraints that cannot be evaluated leave it in, and the plan's mistake becomes its row. */
gboolean sweep_point_has_row(SweepWorker *worker, int64_t point);

/* The point's plan, NULL when a constraint leaves it out or it is invalid. */
Plan *sweep_point_plan(SweepWorker *worker, int64_t point);

/* Evaluates the point. The outcome depends on the sweep and the point alone. */
void sweep_evaluate(SweepWorker *worker, int64_t point, SweepOutcome *ret_outcome);
