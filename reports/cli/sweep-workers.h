/*
 * Who evaluates the points of a sweep: threads of this process, or other processes. Rows come back in order either way.
 */
#pragma once

#include "reports/cli/sweep-run.h"

typedef struct SweepWork {
    const Sweep *sweep;
    const SweepLayout *layout;
    SweepShard shard;
    int64_t first_job; /* of the shard; jobs below count from there */
} SweepWork;

/*
 * Runs n_jobs jobs. consume gets the text of each row (NULL: the point has none), takes it, and ends the run with FALSE;
 * stop is asked now and then and ends it with TRUE.
 */
void sweep_workers_run(const SweepWork *work, int n_threads, int64_t n_jobs,
                       gboolean (*consume)(int64_t job, void *row, void *data), gboolean (*stop)(void *data), void *data);
