#include "tests/check.h"

#include "sim/des/span.h"

static gboolean is_even(const void *data, int lane)
{
    (void)data;
    return lane % 2 == 0;
}

static gboolean is_odd(const void *data, int lane)
{
    (void)data;
    return lane % 2 == 1;
}

static void test_cover(void **state)
{
    (void)state;
    static const Span spans[] = {
        {0, 10, 1, 0}, {5, 20, 2, 1}, {8, 12, 3, 2}, {20, 30, 4, 1}, {25, 40, 5, 0}, {40, 50, 6, 2}, {50, 50, 7, 0},
    };
    g_autoptr(SpanLog) log = span_log_new();
    check_int(span_log_busy_ns(log, is_even, NULL), 0);
    for (size_t i = 0; i < G_N_ELEMENTS(spans); i++) {
        span_log_add(log, &spans[i]);
    }
    check_int(span_log_length(log), G_N_ELEMENTS(spans));
    check_int(span_log_get(log, 3)->tag, 4);
    check_int(span_log_busy_ns(log, is_even, NULL), 12 + 25);
    check_int(span_log_busy_ns(log, is_odd, NULL), 25);
    check_int(span_log_exposed_ns(log, is_even, is_odd, NULL), 5 + 20);
    check_int(span_log_exposed_ns(log, is_odd, is_even, NULL), 8 + 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cover)};
    return cmocka_run_group_tests_name("span", tests, NULL, NULL);
}
