/*
 * A sweep on its way into a file: evaluated by threads, written in the order of its points, gone on with after any end.
 *
 * Invariants: (1) the file is always the beginning of what an undisturbed run gives, cut behind a whole row (a row may be
 * torn only while nobody has gone on with it); (2) the bytes do not depend on the number of threads, processes, or
 * interruptions; (3) memory does not grow with the number of rows.
 *
 * While a file is not complete, FILE.resume beside it says what it is the beginning of: the sweep's checksum and the shard.
 * It is written before the first row and removed after the last.
 */
#pragma once

#include "reports/cli/sweep-rows.h"

/* Points of a shard: blocks of neighbours, dealt out in turn. Shard 0 of 1 is everything. */
typedef struct SweepShard {
    int64_t k, n;
} SweepShard;

/* Number of points in the shard, and the point of its job-th. */
int64_t sweep_shard_n_jobs(const SweepShard *shard, int64_t n_points);
int64_t sweep_shard_point(const SweepShard *shard, int64_t job);

/* Which of n shards a point belongs to. */
int64_t sweep_shard_of(int64_t point, int64_t n);

/* "3/8", counted from 1. FALSE and an error when it is none. */
gboolean sweep_shard_parse(const char *text, SweepShard *ret_shard, GError **error);

typedef struct SweepRun {
    const Sweep *sweep;
    const SweepLayout *layout;
    SweepShard shard;
    const char *path; /* NULL = standard output */
    int n_threads; /* of this process */
    int n_ranks;   /* processes of the MPI job; 1 = none but this one */
    gboolean resume;
} SweepRun;

/*
 * Evaluates and writes. Errors: MOESIM_ERROR_IO (the file holds the rows written before), MOESIM_ERROR_CANCELED
 * (interrupted, likewise), MOESIM_ERROR_INPUT (a file that is not the beginning of this sweep).
 */
gboolean sweep_run(const SweepRun *run, GError **error);

/* Joins the files of all shards in the order of the points. Checks that none is missing or cut short. */
gboolean sweep_merge(const SweepRun *run, char **paths, int n_paths, GError **error);
