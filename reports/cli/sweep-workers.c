#include "reports/cli/sweep-workers.h"

enum { BLOCK = 16 }; /* neighbours share what a session remembers */

struct SweepEvaluator {
    const SweepWork *work;
    SweepWorker *worker;
    Table *table;
    GString *row;
};

typedef struct Pool {
    const SweepWork *work;
    const SweepRowSink *sink;
    void (*poll)(OrderedRun *run, void *others);
    void *others;
} Pool;

SweepEvaluator *sweep_evaluator_new(const SweepWork *work)
{
    SweepEvaluator *evaluator = g_new0(SweepEvaluator, 1);
    evaluator->work = work;
    evaluator->worker = sweep_worker_new(work->sweep);
    evaluator->table = sweep_layout_table(work->layout);
    evaluator->row = g_string_new(NULL);
    return evaluator;
}

void sweep_evaluator_free(SweepEvaluator *evaluator)
{
    if (evaluator != NULL) {
        sweep_worker_free(evaluator->worker);
        table_free(evaluator->table);
        g_string_free(evaluator->row, TRUE);
        g_free(evaluator);
    }
}

char *sweep_evaluator_row(SweepEvaluator *evaluator, int64_t job)
{
    const SweepWork *work = evaluator->work;
    int64_t point = sweep_shard_point(&work->shard, work->first_job + job);
    SweepOutcome outcome;
    sweep_evaluate(evaluator->worker, point, &outcome);
    g_string_truncate(evaluator->row, 0);
    if (outcome.status != SWEEP_LEFT_OUT) {
        sweep_layout_append_row(work->layout, evaluator->table, point, &outcome, evaluator->row);
    }
    sweep_outcome_clear(&outcome);
    return evaluator->row->len > 0 ? g_strndup(evaluator->row->str, evaluator->row->len) : NULL;
}

static void *worker_new(void *data)
{
    return sweep_evaluator_new(((const Pool *)data)->work);
}

static void worker_free(void *worker)
{
    sweep_evaluator_free(worker);
}

static void *evaluate(void *worker, int64_t job, void *data)
{
    (void)data;
    return sweep_evaluator_row(worker, job);
}

static gboolean consume(int64_t job, void *row, void *data)
{
    const SweepRowSink *sink = ((const Pool *)data)->sink;
    return sink->consume(job, row, sink->data);
}

static gboolean stop(void *data)
{
    const SweepRowSink *sink = ((const Pool *)data)->sink;
    return sink->stop(sink->data);
}

static void poll_others(OrderedRun *run, void *data)
{
    const Pool *pool = data;
    pool->poll(run, pool->others);
}

void sweep_workers_run_with(const SweepWork *work, int n_threads, int64_t n_jobs, const SweepRowSink *sink, int n_others,
                            void (*poll)(OrderedRun *run, void *others), void *others)
{
    Pool user = {work, sink, poll, others};
    OrderedPool pool = {
        .n_threads = n_threads,
        .n_others = n_others,
        .block = BLOCK,
        .worker_new = worker_new,
        .worker_free = worker_free,
        .work = evaluate,
        .consume = consume,
        .discard = g_free,
        .stop = stop,
        .poll = poll != NULL ? poll_others : NULL,
        .data = &user,
    };
    ordered_pool_run(&pool, n_jobs);
}

void sweep_workers_run(const SweepWork *work, int n_threads, int64_t n_jobs, const SweepRowSink *sink)
{
    sweep_workers_run_with(work, n_threads, n_jobs, sink, 0, NULL, NULL);
}
