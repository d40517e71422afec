#include "tests/check.h"

#include "sim/base/error.h"
#include "sim/des/stream.h"

typedef struct Bench {
    SimEngine *engine;
    Streams *streams;
    GString *diary; /* "stream:tag@start-end " */
    int n_again;    /* times that tag 99 pushes itself again */
} Bench;

static void on_done(void *self, int stream, uint64_t tag, SimTime start_ns, SimTime end_ns)
{
    Bench *bench = self;
    g_string_append_printf(bench->diary, "%d:%d@%d-%d ", stream, (int)tag, (int)start_ns, (int)end_ns);
    if (tag == 99 && bench->n_again-- > 0) {
        StreamWork work = {.duration_ns = 5, .tag = 99};
        streams_push_work(bench->streams, stream, &work);
        streams_push_call(bench->streams, 0, 98);
    }
}

static char *name_item(void *self, int stream, uint64_t tag)
{
    (void)self;
    return g_strdup_printf("item %d of stream %d", (int)tag, stream);
}

static double half_beside_others(const void *data, guint32 running, int cls)
{
    (void)data;
    return running == 1u << cls ? 1 : 0.5;
}

static void setup(Bench *bench)
{
    bench->engine = sim_engine_new();
    bench->diary = g_string_new(NULL);
    StreamCallbacks callbacks = {on_done, name_item, bench};
    bench->streams = streams_new(bench->engine, &callbacks);
}

static void finish(Bench *bench)
{
    streams_free(bench->streams);
    sim_engine_free(bench->engine);
    g_string_free(bench->diary, TRUE);
}

static void work(Bench *bench, int stream, SimTime duration_ns, uint64_t tag)
{
    StreamWork item = {.duration_ns = duration_ns, .tag = tag};
    streams_push_work(bench->streams, stream, &item);
}

static void check_run(Bench *bench, const char *diary)
{
    g_autoptr(GError) error = NULL;
    sim_engine_run(bench->engine, &error);
    check_no_error(error);
    check_string(bench->diary->str, diary);
}

static void test_order(void **state)
{
    (void)state;
    Bench bench = {0};
    setup(&bench);
    int a = streams_add(bench.streams, "a", -1), b = streams_add(bench.streams, "b", -1);
    int token = streams_add_tokens(bench.streams, 2);
    streams_push_wait(bench.streams, b, token);
    work(&bench, b, 10, 1);
    streams_push_record(bench.streams, b, token + 1);
    work(&bench, a, 30, 2);
    streams_push_record(bench.streams, a, token);
    work(&bench, a, 0, 3);
    streams_push_wait(bench.streams, a, token + 1);
    streams_push_call(bench.streams, a, 4);
    check_int(streams_token_ns(bench.streams, token), -1);
    check_int(streams_n_pending(bench.streams, a), 5);
    check_run(&bench, "0:2@0-30 0:3@30-30 1:1@30-40 0:4@40-40 ");
    check_int(streams_token_ns(bench.streams, token), 30);
    check_int(streams_n_pending(bench.streams, a), 0);
    check_int(streams_busy_ns(bench.streams, a), 30);
    finish(&bench);
}

static void test_not_before(void **state)
{
    (void)state;
    Bench bench = {0};
    setup(&bench);
    int a = streams_add(bench.streams, "a", -1);
    StreamWork items[] = {{.duration_ns = 5, .not_before_ns = 20, .tag = 1},
                          {.duration_ns = 5, .not_before_ns = 22, .tag = 2}};
    streams_push_work(bench.streams, a, &items[0]);
    streams_push_work(bench.streams, a, &items[1]);
    check_run(&bench, "0:1@20-25 0:2@25-30 ");
    finish(&bench);
}

static void test_push_from_callback(void **state)
{
    (void)state;
    Bench bench = {.n_again = 2};
    setup(&bench);
    streams_add(bench.streams, "a", -1);
    streams_add(bench.streams, "b", -1);
    work(&bench, 1, 5, 99);
    check_run(&bench, "1:99@0-5 0:98@5-5 1:99@5-10 0:98@10-10 1:99@10-15 ");
    finish(&bench);
}

static void test_device(void **state)
{
    (void)state;
    Bench bench = {0};
    g_autoptr(ShareLaw) law = share_law_new(2, half_beside_others, NULL);
    g_autoptr(SpanLog) log = span_log_new();
    setup(&bench);
    int device = streams_add_device(bench.streams, law);
    int a = streams_add(bench.streams, "a", device), b = streams_add(bench.streams, "b", device);
    streams_set_log(bench.streams, log);
    StreamWork long_one = {.duration_ns = 100, .cls = 0, .tag = 1}, short_one = {.duration_ns = 20, .cls = 1, .tag = 2};
    streams_push_work(bench.streams, a, &long_one);
    streams_push_work(bench.streams, b, &short_one);
    check_run(&bench, "1:2@0-40 0:1@0-120 ");
    check_int(span_log_length(log), 2);
    check_int(span_log_get(log, 1)->end_ns, 120);
    check_int(span_log_get(log, 1)->lane, a);
    finish(&bench);
}

static void test_join(void **state)
{
    (void)state;
    Bench bench = {0};
    g_autoptr(ShareLaw) law = share_law_new(2, half_beside_others, NULL);
    setup(&bench);
    int group = streams_add_group(bench.streams, 2);
    for (int i = 0; i < 2; i++) {
        int device = streams_add_device(bench.streams, law);
        int compute = streams_add(bench.streams, "compute", device), comm = streams_add(bench.streams, "comm", device);
        StreamWork before = {.duration_ns = 10 * (i + 1), .cls = 1, .tag = 1};
        StreamWork join = {.duration_ns = 30 + 10 * i, .cls = 1, .tag = 2};
        streams_push_work(bench.streams, comm, &before);
        streams_push_join(bench.streams, comm, group, 7, &join);
        streams_push_join(bench.streams, comm, group, 8, &before);
        if (i == 0) { /* from 0 to 10 and from 20 to the end of the join at half speed */
            StreamWork beside = {.duration_ns = 60, .cls = 0, .tag = 3};
            streams_push_work(bench.streams, compute, &beside);
        }
    }
    /*
     * The first member's work of 10 takes 20 at half speed. The join runs from 20; the first member needs 60 at
     * half speed, the second 40: both end at 80. Then 10 and 20 of the second join: the first at half speed.
     * The computation: 40 of 60 done at 80, 10 more until 100, then alone.
     */
    check_run(&bench, "1:1@0-20 3:1@0-20 1:2@20-80 3:2@20-80 1:1@80-100 3:1@80-100 0:3@0-110 ");
    finish(&bench);
}

static void test_mismatch(void **state)
{
    (void)state;
    Bench bench = {0};
    g_autoptr(GError) error = NULL;
    setup(&bench);
    int a = streams_add(bench.streams, "a", -1), b = streams_add(bench.streams, "b", -1);
    int group = streams_add_group(bench.streams, 2);
    StreamWork join = {.duration_ns = 1, .tag = 5};
    streams_push_join(bench.streams, a, group, 7, &join);
    streams_push_join(bench.streams, b, group, 8, &join);
    assert_false(sim_engine_run(bench.engine, &error));
    check_error(&error, MOESIM_ERROR_FAILED, "\"a\" is at item 5 of stream 0, \"b\" at item 5 of stream 1");
    finish(&bench);
}

static void test_deadlock(void **state)
{
    (void)state;
    Bench bench = {0};
    g_autoptr(GError) error = NULL;
    setup(&bench);
    int a = streams_add(bench.streams, "a", -1), b = streams_add(bench.streams, "b", -1);
    int c = streams_add(bench.streams, "c", -1), d = streams_add(bench.streams, "d", -1);
    int token = streams_add_tokens(bench.streams, 3);
    int group = streams_add_group(bench.streams, 2);
    streams_push_wait(bench.streams, a, token);
    streams_push_record(bench.streams, a, token + 1);
    streams_push_wait(bench.streams, b, token + 1);
    streams_push_record(bench.streams, b, token);
    streams_push_wait(bench.streams, c, token + 2);
    StreamWork join = {.duration_ns = 1, .tag = 5};
    streams_push_join(bench.streams, d, group, 7, &join);
    assert_false(sim_engine_run(bench.engine, &error));
    check_contains(error->message, "\"a\", 2 items left, waits for token 0, which stream \"b\" has yet to record");
    check_contains(error->message, "\"b\", 2 items left, waits for token 1, which stream \"a\" has yet to record");
    check_contains(error->message, "\"c\", 1 items left, waits for token 2, which no stream records");
    check_error(&error, MOESIM_ERROR_FAILED,
                "\"d\", 1 items left, waits in item 5 of stream 3 for the others of group 0: 1 of 2 have come");
    finish(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),    cmocka_unit_test(test_not_before), cmocka_unit_test(test_push_from_callback),
        cmocka_unit_test(test_device),   cmocka_unit_test(test_join),       cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_deadlock),
    };
    return cmocka_run_group_tests_name("stream", tests, NULL, NULL);
}
