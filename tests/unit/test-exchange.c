/* Exchange stacks: every shipped one loads, says where its values come from, and never beats the links. */
#include "tests/check.h"

#include "hw/exchange.h"
#include "sim/base/error.h"

static void test_stacks(void **state)
{
    (void)state;
    g_auto(GStrv) names = exchange_stack_names();
    g_autoptr(GError) error = NULL;
    g_autoptr(Cluster) cluster = cluster_load("h100-sxm", 8, 8, &error);
    check_no_error(error);
    assert_true(g_strv_length(names) >= 5);
    for (char **name = names; *name != NULL; name++) {
        g_autoptr(ExchangeStack) stack = exchange_stack_load(*name, &error);
        check_no_error(error);
        check_string(stack->name, *name);
        for (int combine = 0; combine <= 1; combine++) {
            double last = 0;
            for (double mb = 0; mb <= 4096; mb = 2 * mb + 1) {
                ExchangeBytes bytes = {.inside = mb * 1e6, .outside = mb * 5e5};
                double seconds = exchange_seconds(cluster, stack, &bytes, combine);
                assert_true(seconds >= bytes.inside / cluster->scale_up_bytes_per_s);
                assert_true(seconds >= bytes.outside / cluster->scale_out_bytes_per_s);
                assert_true(seconds >= last);
                last = seconds;
            }
        }
    }
}

static void test_unknown(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    assert_null(exchange_stack_load("hybrid-ep", &error));
    check_error(&error, MOESIM_ERROR_INPUT, "did you mean hybridep");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stacks), cmocka_unit_test(test_unknown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
