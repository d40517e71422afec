/*
 * Random plans with collectives as flows and in closed form: where the result says that no link is shared, both are the same
 * to the nanosecond; where it says that links slow collectives down, some of them meet; in closed form nothing does.
 */
#include "tests/property/random-plan.h"

#include "workloads/run/run.h"

enum { N_PLANS = 60 };

/* Plans as they are run, where links are shared and where they are not: ports in a node, NICs, uplinks, nothing. */
static const struct Known {
    const char *name, *words;
    guint32 meets; /* bits by NetLevel */
} knowns[] = {
    {"one stream", "model=llama-3.1-8b cluster.preset=h200-sxm cluster.nodes=2 parallel.sharding=none precision.parameters=bf16 workload.global_batch=16", 0},
    {"a node", "model=qwen3-30b-a3b cluster.preset=h200-sxm parallel.ep=8 workload.global_batch=8 memory.recompute=full", 1u << NET_SCALE_UP},
    {"nodes", "model=qwen3-30b-a3b cluster.preset=h200-sxm cluster.nodes=4 parallel.ep=16 workload.global_batch=32 memory.recompute=full",
     1u << NET_SCALE_UP | 1u << NET_NIC},
};

static guint32 meets(const Result *result)
{
    guint32 levels = 0;
    for (guint i = 0; i < result->collectives->len; i++) {
        levels |= ((const ResultCollective *)g_ptr_array_index(result->collectives, i))->meets;
    }
    return levels;
}

static Result *run_words(const char *words, const char *level)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *more = g_strdup_printf("network.level=%s %s", level, words);
    g_autoptr(Plan) plan = plan_of_words(more, NULL);
    Result *result = plan != NULL ? run_plan(plan, NULL, &error) : NULL;
    check_no_error(error);
    return result;
}

/* Flows and closed form of a plan. FALSE: it is refused. The levels at which it shares links in *ret_meets. */
static gboolean check_plan(const char *words, guint32 *ret_meets)
{
    g_autoptr(Result) flows = run_words(words, "flows");
    g_autoptr(Result) closed = run_words(words, "closed_form");
    if (flows == NULL) {
        return FALSE;
    }
    *ret_meets = meets(flows);
    check_int(meets(closed), 0);
    check_close(closed->crowded_s, 0, 0);
    assert_true(*ret_meets != 0 || flows->crowded_s <= 0);
    if (flows->crowded_s <= 0) {
        check_close(flows->step_time_s, closed->step_time_s, 0);
        check_close(flows->exposed_comm_s, closed->exposed_comm_s, 0);
    }
    return TRUE;
}

static void test_known(void **state)
{
    const struct Known *known = *state;
    guint32 levels = 0;
    assert_true(check_plan(known->words, &levels));
    check_int(levels, known->meets);
}

/* Seconds of an operator in the result. */
static double operator_s(const Result *result, const char *name)
{
    for (guint i = 0; i < result->operators->len; i++) {
        const ResultOperator *entry = g_ptr_array_index(result->operators, i);
        if (strcmp(entry->name, name) == 0) {
            return entry->seconds;
        }
    }
    fail_msg("no operator %s", name);
    return 0;
}

static double linear_s(const char *words, double comm_power_share)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_of_words(words, &error);
    check_no_error(error);
    plan->cluster->device->comm_power_share = comm_power_share;
    g_autoptr(Result) result = run_plan(plan, NULL, &error);
    check_no_error(error);
    return operator_s(result, "linear");
}

/* Collectives draw power, so products run at a lower clock; where there are none, nothing changes. */
static void test_power(void **state)
{
    (void)state;
    static const char many[] = "model=qwen3-30b-a3b cluster.preset=h200-sxm parallel.ep=8 workload.global_batch=8 memory.recompute=full";
    static const char one[] = "model=llama-3.1-8b model.overrides.num_hidden_layers=4 cluster.preset=h200-sxm cluster.gpus_per_node=1 workload.global_batch=1";
    double without = linear_s(many, 0), some = linear_s(many, 0.25), more = linear_s(many, 0.5);
    assert_true(without < some && some < more && more < 1.1 * without);
    check_close(linear_s(one, 0.5), linear_s(one, 0), 0);
}

static void test_random(void **state)
{
    (void)state;
    int n = 0, n_alone = 0;
    for (uint64_t seed = 1; n < N_PLANS; seed++) {
        g_autofree char *words = random_plan_words(seed);
        guint32 levels;
        if (check_plan(words, &levels)) {
            n++;
            n_alone += levels == 0;
        }
    }
    assert_true(n_alone >= N_PLANS / 3);
}

int main(void)
{
    struct CMUnitTest tests[G_N_ELEMENTS(knowns) + 2] = {cmocka_unit_test(test_random), cmocka_unit_test(test_power)};
    for (size_t i = 0; i < G_N_ELEMENTS(knowns); i++) {
        tests[i + 2] = (struct CMUnitTest){.name = knowns[i].name, .test_func = test_known, .initial_state = (void *)(uintptr_t)&knowns[i]};
    }
    return _cmocka_run_group_tests("network-level", tests, G_N_ELEMENTS(tests), NULL, NULL);
}
