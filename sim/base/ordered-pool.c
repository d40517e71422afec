#include "sim/base/ordered-pool.h"

enum { BLOCKS_PER_THREAD = 4, WAIT_US = 100000, POLL_US = 1000 };

typedef struct Slot {
    gboolean done;
    void *result;
} Slot;

struct OrderedRun {
    const OrderedPool *pool;
    int64_t n_jobs, window;
    Slot *slots; /* [window]: job j has slot j % window */
    GMutex lock;
    int64_t n_taken, n_consumed; /* jobs */
    gboolean ending;
    GCond progress; /* a slot was filled */
    GCond room;     /* a slot was emptied, or the run ends */
};

/* ---- blocks ---- */

/* A block may be taken when all its slots are free. Call under the lock. */
static gboolean has_block(const OrderedRun *run)
{
    int64_t end = MIN(run->n_taken + run->pool->block, run->n_jobs);
    return run->n_taken < run->n_jobs && end <= run->n_consumed + run->window;
}

static void take_block(OrderedRun *run, int64_t *ret_first, int64_t *ret_end)
{
    *ret_first = run->n_taken;
    *ret_end = run->n_taken = MIN(run->n_taken + run->pool->block, run->n_jobs);
}

gboolean ordered_run_take(OrderedRun *run, int64_t *ret_first, int64_t *ret_end)
{
    g_mutex_lock(&run->lock);
    gboolean found = !run->ending && has_block(run);
    if (found) {
        take_block(run, ret_first, ret_end);
    }
    g_mutex_unlock(&run->lock);
    return found;
}

void ordered_run_publish(OrderedRun *run, int64_t job, void *result)
{
    Slot *slot = &run->slots[job % run->window];
    g_mutex_lock(&run->lock);
    g_assert(!slot->done && job >= run->n_consumed && job < run->n_taken);
    slot->result = result;
    slot->done = TRUE;
    g_cond_signal(&run->progress);
    g_mutex_unlock(&run->lock);
}

/* ---- threads ---- */

static gboolean is_ending(OrderedRun *run)
{
    g_mutex_lock(&run->lock);
    gboolean ending = run->ending;
    g_mutex_unlock(&run->lock);
    return ending;
}

/* Waits for the next block; FALSE when there will be none. */
static gboolean await_block(OrderedRun *run, int64_t *ret_first, int64_t *ret_end)
{
    g_mutex_lock(&run->lock);
    while (!run->ending && run->n_taken < run->n_jobs && !has_block(run)) {
        g_cond_wait(&run->room, &run->lock);
    }
    gboolean found = !run->ending && run->n_taken < run->n_jobs;
    if (found) {
        take_block(run, ret_first, ret_end);
    }
    g_mutex_unlock(&run->lock);
    return found;
}

static void work_blocks(gpointer data, gpointer user)
{
    (void)data;
    OrderedRun *run = user;
    const OrderedPool *pool = run->pool;
    void *worker = NULL;
    int64_t first, end;
    while (await_block(run, &first, &end)) {
        worker = worker != NULL ? worker : pool->worker_new(pool->data);
        for (int64_t job = first; job < end && !is_ending(run); job++) {
            ordered_run_publish(run, job, pool->work(worker, job, pool->data));
        }
    }
    if (worker != NULL) {
        pool->worker_free(worker);
    }
}

/* ---- the caller ---- */

/* Waits until the job is done; FALSE when the run is to end before. */
static gboolean await_result(OrderedRun *run, int64_t job, void **ret_result)
{
    const OrderedPool *pool = run->pool;
    Slot *slot = &run->slots[job % run->window];
    gint64 wait_us = pool->poll != NULL ? POLL_US : WAIT_US;
    g_mutex_lock(&run->lock);
    while (!slot->done) {
        gboolean woken = g_cond_wait_until(&run->progress, &run->lock, g_get_monotonic_time() + wait_us);
        g_mutex_unlock(&run->lock);
        if (pool->poll != NULL) {
            pool->poll(run, pool->data);
        }
        if (!woken && pool->stop(pool->data)) {
            return FALSE;
        }
        g_mutex_lock(&run->lock);
    }
    *ret_result = slot->result;
    *slot = (Slot){0};
    run->n_consumed = job + 1;
    g_cond_broadcast(&run->room);
    g_mutex_unlock(&run->lock);
    return TRUE;
}

static int64_t consume_all(OrderedRun *run)
{
    const OrderedPool *pool = run->pool;
    for (int64_t job = 0; job < run->n_jobs; job++) {
        void *result;
        if (pool->stop(pool->data) || !await_result(run, job, &result) || !pool->consume(job, result, pool->data)) {
            return job;
        }
    }
    return run->n_jobs;
}

static void run_init(OrderedRun *run, const OrderedPool *pool, int64_t n_jobs)
{
    *run = (OrderedRun){.pool = pool, .n_jobs = n_jobs};
    run->window = pool->block * BLOCKS_PER_THREAD * (pool->n_threads + pool->n_others);
    run->slots = g_new0(Slot, run->window);
    g_mutex_init(&run->lock);
    g_cond_init(&run->progress);
    g_cond_init(&run->room);
}

static void run_clear(OrderedRun *run)
{
    for (int64_t i = 0; i < run->window; i++) {
        if (run->slots[i].done && run->slots[i].result != NULL) {
            run->pool->discard(run->slots[i].result);
        }
    }
    g_cond_clear(&run->progress);
    g_cond_clear(&run->room);
    g_mutex_clear(&run->lock);
    g_free(run->slots);
}

int64_t ordered_pool_run(const OrderedPool *pool, int64_t n_jobs)
{
    g_assert(pool->n_threads >= 0 && pool->n_threads + pool->n_others >= 1 && pool->block >= 1);
    OrderedRun run;
    run_init(&run, pool, n_jobs);
    GThreadPool *threads = pool->n_threads > 0 ? g_thread_pool_new(work_blocks, &run, pool->n_threads, TRUE, NULL) : NULL;
    for (int i = 0; i < pool->n_threads; i++) {
        g_thread_pool_push(threads, &run, NULL); /* one long task for each thread */
    }
    int64_t n_consumed = consume_all(&run);
    g_mutex_lock(&run.lock);
    run.ending = TRUE;
    g_cond_broadcast(&run.room);
    g_mutex_unlock(&run.lock);
    if (threads != NULL) {
        g_thread_pool_free(threads, FALSE, TRUE);
    }
    run_clear(&run);
    return n_consumed;
}
