#include "sim/base/ordered-pool.h"

enum { BLOCKS_PER_THREAD = 4, WAIT_US = 100000 };

typedef struct Slot {
    gboolean done;
    void *result;
} Slot;

typedef struct Run {
    const OrderedPool *pool;
    int64_t n_jobs, window;
    Slot *slots; /* [window]: job j has slot j % window */
    GMutex lock;
    GCond progress; /* a slot was filled */
    gboolean ending;
    GAsyncQueue *workers; /* idle ones */
} Run;

static gboolean is_ending(Run *run)
{
    g_mutex_lock(&run->lock);
    gboolean ending = run->ending;
    g_mutex_unlock(&run->lock);
    return ending;
}

static void publish(Run *run, int64_t job, void *result)
{
    Slot *slot = &run->slots[job % run->window];
    g_mutex_lock(&run->lock);
    slot->result = result;
    slot->done = TRUE;
    g_cond_signal(&run->progress);
    g_mutex_unlock(&run->lock);
}

/* One block; data is its number from 1. */
static void work_block(gpointer data, gpointer user)
{
    Run *run = user;
    const OrderedPool *pool = run->pool;
    int64_t first = (int64_t)(GPOINTER_TO_SIZE(data) - 1) * pool->block;
    int64_t end = MIN(first + pool->block, run->n_jobs);
    void *worker = g_async_queue_try_pop(run->workers);
    if (worker == NULL) {
        worker = pool->worker_new(pool->data);
    }
    for (int64_t job = first; job < end && !is_ending(run); job++) {
        publish(run, job, pool->work(worker, job, pool->data));
    }
    g_async_queue_push(run->workers, worker);
}

/* Waits until the job is done; FALSE when the run is to end before. */
static gboolean await(Run *run, int64_t job, void **ret_result)
{
    Slot *slot = &run->slots[job % run->window];
    g_mutex_lock(&run->lock);
    while (!slot->done) {
        gint64 until = g_get_monotonic_time() + WAIT_US;
        gboolean woken = g_cond_wait_until(&run->progress, &run->lock, until);
        if (!woken && run->pool->stop(run->pool->data)) {
            g_mutex_unlock(&run->lock);
            return FALSE;
        }
    }
    *ret_result = slot->result;
    slot->done = FALSE;
    slot->result = NULL;
    g_mutex_unlock(&run->lock);
    return TRUE;
}

static int64_t consume_all(Run *run, GThreadPool *threads)
{
    const OrderedPool *pool = run->pool;
    int64_t n_blocks = (run->n_jobs + pool->block - 1) / pool->block, n_issued = 0;
    for (int64_t job = 0; job < run->n_jobs; job++) {
        /* a block is issued when all its slots are free */
        while (n_issued < n_blocks && (n_issued + 1) * pool->block <= job + run->window) {
            g_thread_pool_push(threads, GSIZE_TO_POINTER((gsize)n_issued + 1), NULL);
            n_issued++;
        }
        void *result;
        if (pool->stop(pool->data) || !await(run, job, &result)) {
            return job;
        }
        if (!pool->consume(job, result, pool->data)) {
            return job;
        }
    }
    return run->n_jobs;
}

int64_t ordered_pool_run(const OrderedPool *pool, int64_t n_jobs)
{
    g_assert(pool->n_threads >= 1 && pool->block >= 1);
    Run run = {.pool = pool, .n_jobs = n_jobs, .window = pool->block * BLOCKS_PER_THREAD * pool->n_threads};
    run.slots = g_new0(Slot, run.window);
    run.workers = g_async_queue_new_full(pool->worker_free);
    g_mutex_init(&run.lock);
    g_cond_init(&run.progress);
    GThreadPool *threads = g_thread_pool_new(work_block, &run, pool->n_threads, TRUE, NULL);
    int64_t n_consumed = consume_all(&run, threads);
    g_mutex_lock(&run.lock);
    run.ending = TRUE;
    g_mutex_unlock(&run.lock);
    g_thread_pool_free(threads, TRUE, TRUE);
    for (int64_t i = 0; i < run.window; i++) {
        if (run.slots[i].done && run.slots[i].result != NULL) {
            pool->discard(run.slots[i].result);
        }
    }
    g_async_queue_unref(run.workers);
    g_cond_clear(&run.progress);
    g_mutex_clear(&run.lock);
    g_free(run.slots);
    return n_consumed;
}
