/* What has to hold between the results of random plans, whatever the model and the layout. */
#include "tests/property/random-plan.h"

#include "workloads/run/run.h"

enum { N_PLANS = 60 };

/* Runs a plan (a deadlock or a buffer never freed is an error); further words override earlier ones. */
static Result *run_words(const char *words, const char *more)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *all = g_strdup_printf("%s %s", words, more);
    g_autoptr(Plan) plan = plan_of_words(all, &error);
    check_no_error(error);
    Result *result = run_plan(plan, NULL, &error);
    if (error != NULL) {
        print_error("%s\n", all);
    }
    check_no_error(error);
    return result;
}

static void test_same_bytes(void **state)
{
    (void)state;
    for (uint64_t seed = 1000; seed < 1000 + N_PLANS; seed++) {
        g_autofree char *words = random_plan_words(seed);
        g_autoptr(Result) first = run_words(words, ""), second = run_words(words, "");
        g_autoptr(json_t) a = result_to_json(first), b = result_to_json(second);
        assert_true(json_equal(a, b));
    }
}

/* The more is made again, the less is kept. */
static void test_recompute(void **state)
{
    (void)state;
    for (size_t m = 0; m < G_N_ELEMENTS(random_models); m++) {
        g_autofree char *words = g_strdup_printf("%s cluster.preset=h200-sxm cluster.gpus_per_node=8 workload.seq_len=1024 "
                                                 "workload.micro_batch=4",
                                                 random_models[m]);
        g_autoptr(Result) none = run_words(words, "memory.recompute=none"), full = run_words(words, "memory.recompute=full");
        g_autoptr(Result) some = run_words(words, "memory.recompute=selective");
        assert_true(none->after_forward_memory_bytes >= some->after_forward_memory_bytes);
        assert_true(some->after_forward_memory_bytes >= full->after_forward_memory_bytes);
        assert_true(full->step_time_s >= none->step_time_s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bytes), cmocka_unit_test(test_recompute)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
