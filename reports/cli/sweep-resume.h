/*
 * Going on with the file of a sweep, and joining files of shards: telling which points' rows a file holds.
 */
#pragma once

#include "reports/cli/sweep-run.h"

typedef struct SweepResume {
    int64_t keep_bytes; /* of the file: header and whole rows */
    int64_t n_jobs;     /* of the shard whose rows are there */
    gboolean is_complete;
} SweepResume;

/*
 * Prepares the file: with --resume finds what is there, else empties it; notes beside it what it becomes.
 */
gboolean sweep_resume_begin(const SweepRun *run, SweepResume *ret_resume, GError **error);

/* The file is complete: removes the note. */
gboolean sweep_resume_end(const SweepRun *run, GError **error);
