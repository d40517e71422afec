#include "reports/cli/sweep-workers.h"

#include "sim/base/ordered-pool.h"

enum { BLOCK = 16 }; /* neighbours share what a session remembers */

typedef struct Worker {
    SweepWorker *worker;
    Table *table;
    GString *row;
} Worker;

typedef struct Pool {
    const SweepWork *work;
    gboolean (*consume)(int64_t job, void *row, void *data);
    gboolean (*stop)(void *data);
    void *data;
} Pool;

static void *worker_new(void *data)
{
    const Pool *pool = data;
    Worker *worker = g_new0(Worker, 1);
    worker->worker = sweep_worker_new(pool->work->sweep);
    worker->table = sweep_layout_table(pool->work->layout);
    worker->row = g_string_new(NULL);
    return worker;
}

static void worker_free(void *data)
{
    Worker *worker = data;
    sweep_worker_free(worker->worker);
    table_free(worker->table);
    g_string_free(worker->row, TRUE);
    g_free(worker);
}

static void *evaluate(void *data, int64_t job, void *user)
{
    Worker *worker = data;
    const SweepWork *work = ((Pool *)user)->work;
    int64_t point = sweep_shard_point(&work->shard, work->first_job + job);
    SweepOutcome outcome;
    sweep_evaluate(worker->worker, point, &outcome);
    g_string_truncate(worker->row, 0);
    if (outcome.status != SWEEP_LEFT_OUT) {
        sweep_layout_append_row(work->layout, worker->table, point, &outcome, worker->row);
    }
    sweep_outcome_clear(&outcome);
    return worker->row->len > 0 ? g_strndup(worker->row->str, worker->row->len) : NULL;
}

static gboolean consume_row(int64_t job, void *row, void *user)
{
    const Pool *pool = user;
    return pool->consume(job, row, pool->data);
}

static gboolean ask_stop(void *user)
{
    const Pool *pool = user;
    return pool->stop(pool->data);
}

void sweep_workers_run(const SweepWork *work, int n_threads, int64_t n_jobs,
                       gboolean (*consume)(int64_t job, void *row, void *data), gboolean (*stop)(void *data), void *data)
{
    Pool user = {work, consume, stop, data};
    OrderedPool pool = {
        .n_threads = n_threads,
        .block = BLOCK,
        .worker_new = worker_new,
        .worker_free = worker_free,
        .work = evaluate,
        .consume = consume_row,
        .discard = g_free,
        .stop = ask_stop,
        .data = &user,
    };
    ordered_pool_run(&pool, n_jobs);
}
