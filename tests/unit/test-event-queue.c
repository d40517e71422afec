#include "tests/check.h"

#include "sim/base/rng.h"
#include "sim/des/event-queue.h"

static void ignore(void *self, uint64_t arg)
{
    (void)self;
    (void)arg;
}

static void push(EventQueue *queue, SimTime time_ns, uint64_t arg)
{
    Event event = {time_ns, ignore, queue, arg};
    event_queue_push(queue, &event);
}

static void test_empty(void **state)
{
    (void)state;
    g_autoptr(EventQueue) queue = event_queue_new();
    Event event;
    assert_false(event_queue_pop(queue, &event));
    check_int(event_queue_next_ns(queue), G_MAXINT64);
    check_int(event_queue_length(queue), 0);
    push(queue, 5, 17);
    check_int(event_queue_next_ns(queue), 5);
    assert_true(event_queue_pop(queue, &event));
    check_int(event.time_ns, 5);
    check_int(event.arg, 17);
    assert_true(event.run == ignore && event.self == queue);
    assert_false(event_queue_pop(queue, &event));
}

static void test_ties(void **state)
{
    (void)state;
    g_autoptr(EventQueue) queue = event_queue_new();
    Event event;
    for (uint64_t i = 0; i < 1000; i++) {
        push(queue, i % 3 == 0 ? 7 : 3, i);
    }
    uint64_t before = 0;
    for (int i = 0; i < 1000; i++) {
        assert_true(event_queue_pop(queue, &event));
        assert_true(i == 0 || event.time_ns > 3 ? TRUE : event.arg > before);
        before = event.arg;
    }
    check_int(before, 999);
}

typedef struct Pending {
    SimTime time_ns;
    uint64_t serial;
} Pending;

static int compare(const void *a, const void *b)
{
    const Pending *x = a, *y = b;
    return x->time_ns != y->time_ns ? (x->time_ns > y->time_ns) - (x->time_ns < y->time_ns)
                                    : (x->serial > y->serial) - (x->serial < y->serial);
}

/* Random pushes and pops against a list that is sorted anew each time. */
static void test_random(void **state)
{
    (void)state;
    g_autoptr(EventQueue) queue = event_queue_new();
    g_autoptr(GArray) list = g_array_new(FALSE, FALSE, sizeof(Pending));
    SimTime now_ns = 0;
    for (uint64_t i = 0; i < 6000; i++) {
        gboolean grows = i < 2000 ? rng_below(1, RNG_TEST, i, 3) > 0 : rng_below(1, RNG_TEST, i, 3) == 0;
        if (grows) {
            Pending pending = {now_ns + (SimTime)rng_below(2, RNG_TEST, i, 20), i};
            push(queue, pending.time_ns, i);
            g_array_append_val(list, pending);
            continue;
        }
        Event event;
        gboolean any = event_queue_pop(queue, &event);
        check_int(any, list->len > 0);
        if (any) {
            g_array_sort(list, compare);
            check_int(event.time_ns, g_array_index(list, Pending, 0).time_ns);
            check_int(event.arg, g_array_index(list, Pending, 0).serial);
            g_array_remove_index(list, 0);
            now_ns = event.time_ns;
        }
        check_int(event_queue_length(queue), list->len);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests_name("event-queue", tests, NULL, NULL);
}
