/*
 * Ordered pool: many threads work on jobs 0, 1, 2, …; their results come back in that order, on the caller's thread.
 *
 * Invariants: (1) the results do not depend on the number of threads, as long as a job's result depends on its index alone;
 * (2) at most `window` results are held at any moment, so memory does not grow with the number of jobs; (3) `consume`
 * is called from one thread, for 0, 1, 2, … without gaps.
 *
 * A job that lies near its predecessor may be faster on the same thread, so jobs are handed out in blocks of neighbours.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef struct OrderedPool {
    int n_threads;                                /* at least 1 */
    int64_t block;                                /* neighbouring jobs handed to one thread, at least 1 */
    void *(*worker_new)(void *data);              /* what a thread keeps between jobs; made once for each thread */
    void (*worker_free)(void *worker);
    void *(*work)(void *worker, int64_t job, void *data); /* the result, owned by the caller; NULL is one too */
    /* Takes the result. FALSE ends the run: no further result is consumed. */
    gboolean (*consume)(int64_t job, void *result, void *data);
    void (*discard)(void *result); /* frees a result that is not consumed */
    /* Asked now and then on the caller's thread, at least every 100 ms; TRUE ends the run. */
    gboolean (*stop)(void *data);
    void *data;
} OrderedPool;

/* Runs jobs 0 … n_jobs − 1. Returns how many were consumed: n_jobs unless it was ended before. */
int64_t ordered_pool_run(const OrderedPool *pool, int64_t n_jobs);
