#include "tests/check.h"

#include "sim/base/ordered-pool.h"
#include "sim/base/rng.h"

typedef struct Count {
    int64_t n_jobs, next;       /* consumed so far */
    int64_t end_at;             /* consume refuses this job; -1 = never */
    int64_t stop_at;            /* stop says so from here on; -1 = never */
    gint n_workers, n_held_max; /* results that were there at once */
    gint n_held;
    gint n_freed;
} Count;

static void *worker_new(void *data)
{
    Count *count = data;
    g_atomic_int_inc(&count->n_workers);
    return g_new0(int64_t, 1);
}

typedef struct Item {
    int64_t value;
    Count *count;
} Item;

static void *work(void *worker, int64_t job, void *data)
{
    Count *count = data;
    ++*(int64_t *)worker;
    if (rng_below(7, RNG_TEST, (uint64_t)job, 50) == 0) {
        g_usleep(500);
    }
    Item *item = g_new(Item, 1);
    *item = (Item){job * job, count};
    int held = g_atomic_int_add(&count->n_held, 1) + 1;
    int most = g_atomic_int_get(&count->n_held_max);
    while (held > most && !g_atomic_int_compare_and_exchange(&count->n_held_max, most, held)) {
        most = g_atomic_int_get(&count->n_held_max);
    }
    return item;
}

static void discard(void *result)
{
    Item *item = result;
    g_atomic_int_inc(&item->count->n_freed);
    g_free(item);
}

static gboolean consume(int64_t job, void *result, void *data)
{
    Count *count = data;
    check_int(job, count->next);
    check_int(((Item *)result)->value, job * job);
    g_atomic_int_add(&count->n_held, -1);
    discard(result);
    if (job == count->end_at) {
        return FALSE;
    }
    count->next++;
    return TRUE;
}

static gboolean stop(void *data)
{
    const Count *count = data;
    return count->stop_at >= 0 && count->next >= count->stop_at;
}

static OrderedPool pool_of(int threads, int64_t block, Count *count)
{
    return (OrderedPool){.n_threads = threads,
                         .block = block,
                         .worker_new = worker_new,
                         .worker_free = g_free,
                         .work = work,
                         .consume = consume,
                         .discard = discard,
                         .stop = stop,
                         .data = count};
}

/* Others than the pool's threads: two that take a block each and give it back at once, from the last job to the first. */
static void poll_others(OrderedRun *run, void *data)
{
    int64_t worker = 0, first, end;
    for (int i = 0; i < 2; i++) {
        if (ordered_run_take(run, &first, &end)) {
            for (int64_t job = end; job-- > first;) {
                ordered_run_publish(run, job, work(&worker, job, data));
            }
        }
    }
}

static void test_others(void **state)
{
    (void)state;
    for (int threads = 0; threads <= 2; threads++) {
        Count count = {.n_jobs = 300, .end_at = -1, .stop_at = -1};
        OrderedPool pool = pool_of(threads, 8, &count);
        pool.n_others = 2;
        pool.poll = poll_others;
        check_int(ordered_pool_run(&pool, 300), 300);
        check_int(count.next, 300);
        check_int(count.n_freed, 300);
        Count ended = {.n_jobs = 300, .end_at = 77, .stop_at = -1};
        pool.data = &ended;
        check_int(ordered_pool_run(&pool, 300), 77);
        check_int(ended.n_freed, ended.next + 1 + ended.n_held); /* what was not consumed is freed too */
    }
}

static void test_order(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 7, 64, 1000};
    for (int threads = 1; threads <= 8; threads *= 2) {
        for (int64_t block = 1; block <= 32; block *= 8) {
            for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
                Count count = {.n_jobs = sizes[i], .end_at = -1, .stop_at = -1};
                OrderedPool pool = pool_of(threads, block, &count);
                check_int(ordered_pool_run(&pool, sizes[i]), sizes[i]);
                check_int(count.next, sizes[i]);
                check_int(count.n_freed, sizes[i]);
                assert_true(count.n_workers <= threads);
                assert_true(count.n_held_max <= 4 * threads * block + 1); /* the window, not the length; and the one consumed */
            }
        }
    }
}

/* Ended by the consumer, or from outside: what was consumed is a prefix, and nothing leaks. */
static void test_end(void **state)
{
    (void)state;
    for (int64_t at = 0; at < 200; at += 37) {
        Count ended = {.n_jobs = 500, .end_at = at, .stop_at = -1};
        OrderedPool pool = pool_of(4, 8, &ended);
        check_int(ordered_pool_run(&pool, 500), at);
        check_int(ended.next, at);
        Count stopped = {.n_jobs = 500, .end_at = -1, .stop_at = at};
        pool.data = &stopped;
        check_int(ordered_pool_run(&pool, 500), at);
        check_int(stopped.next, at);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_end),
        cmocka_unit_test(test_others),
    };
    return cmocka_run_group_tests_name("ordered-pool", tests, NULL, NULL);
}
