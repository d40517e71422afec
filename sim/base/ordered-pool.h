/*
 * Ordered pool: many threads work on jobs 0, 1, 2, …; their results come back in that order, on the caller's thread.
 *
 * Invariants: (1) the results do not depend on the number of threads, as long as a job's result depends on its index alone;
 * (2) at most `window` results are held at any moment, so memory does not grow with the number of jobs; (3) `consume`
 * is called from one thread, for 0, 1, 2, … without gaps.
 *
 * A job that lies near its predecessor may be faster on the same thread, so jobs are taken in blocks of neighbours. Others
 * than the pool's own threads may work too: `poll` gives them blocks and takes their results.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef struct OrderedRun OrderedRun;

typedef struct OrderedPool {
    int n_threads;                                /* own ones; 0 when only others work */
    int n_others;                                 /* threads that work behind `poll`: they widen the window */
    int64_t block;                                /* neighbouring jobs taken at a time, at least 1 */
    void *(*worker_new)(void *data);              /* what a thread keeps between jobs; made once for each thread */
    void (*worker_free)(void *worker);
    void *(*work)(void *worker, int64_t job, void *data); /* the result, owned by the caller; NULL is one too */
    /* Takes the result. FALSE ends the run: no further result is consumed. */
    gboolean (*consume)(int64_t job, void *result, void *data);
    void (*discard)(void *result); /* frees a result that is not consumed */
    /* Asked on the caller's thread before each result, and at least every 100 ms; TRUE ends the run. */
    gboolean (*stop)(void *data);
    /* Called on the caller's thread every millisecond or so while it waits; may be NULL. */
    void (*poll)(OrderedRun *run, void *data);
    void *data;
} OrderedPool;

/* Runs jobs 0 … n_jobs − 1. Returns how many were consumed: n_jobs unless it was ended before. */
int64_t ordered_pool_run(const OrderedPool *pool, int64_t n_jobs);

/* From poll: takes the next block, jobs *ret_first … *ret_end − 1; FALSE when there is none at this moment. */
gboolean ordered_run_take(OrderedRun *run, int64_t *ret_first, int64_t *ret_end);

/* From poll: the result of a job that was taken. */
void ordered_run_publish(OrderedRun *run, int64_t job, void *result);
