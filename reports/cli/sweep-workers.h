/*
 * Who evaluates the points of a sweep: threads of this process. Rows come back in order.
 */
#pragma once

#include "reports/cli/sweep-run.h"
#include "sim/base/ordered-pool.h"

typedef struct SweepWork {
    const Sweep *sweep;
    const SweepLayout *layout;
    SweepShard shard;
    int64_t first_job; /* of the shard; jobs below count from there */
} SweepWork;

/* What one thread evaluates with. */
typedef struct SweepEvaluator SweepEvaluator;

SweepEvaluator *sweep_evaluator_new(const SweepWork *work);
void sweep_evaluator_free(SweepEvaluator *evaluator);

/* The text of the job's row, NULL when its point has none; caller frees. */
char *sweep_evaluator_row(SweepEvaluator *evaluator, int64_t job);

/* Where the rows go. */
typedef struct SweepRowSink {
    gboolean (*consume)(int64_t job, void *row, void *data); /* takes the row's text (or NULL); FALSE ends the run */
    gboolean (*stop)(void *data);                            /* asked now and then; TRUE ends the run */
    void *data;
} SweepRowSink;

/*
 * Runs n_jobs jobs on threads of this process, and on n_others elsewhere that poll feeds (0 and NULL: none).
 */
void sweep_workers_run(const SweepWork *work, int n_threads, int64_t n_jobs, const SweepRowSink *sink);
void sweep_workers_run_with(const SweepWork *work, int n_threads, int64_t n_jobs, const SweepRowSink *sink, int n_others,
                            void (*poll)(OrderedRun *run, void *others), void *others);
