/*
 * The allocator phase by phase against the ledger: the same bytes alive at the same moments, whatever blocks they got, and what is
 * free in between adds up.
 */
#include "tests/check.h"
#include "tests/property/random-plan.h"

#include "workloads/run/run.h"

enum { N_PLANS = 60 };

/* Blocks may be larger than what was asked for: by 1 MiB each at most, and those of two walks differ. */
static void check_near(int64_t bytes, int64_t other)
{
    check_close((double)bytes, (double)other, 0.02);
}

static void check_phases(const Result *result)
{
    const ResultMoment *moments = result->phases->moments;
    check_near(moments[MOMENT_BETWEEN_STEPS].allocated_bytes, result->static_memory_bytes);
    check_near(moments[MOMENT_AFTER_FORWARD].allocated_bytes, result->after_forward_memory_bytes);
    check_near(moments[MOMENT_PEAK].allocated_bytes, result->peak_memory_bytes);
    for (int i = 0; i < N_MOMENTS; i++) {
        int64_t cached_bytes = moments[i].reserved_bytes - moments[i].allocated_bytes;
        assert_true(moments[i].allocated_bytes > 0 && moments[i].allocated_bytes <= moments[MOMENT_PEAK].allocated_bytes);
        assert_true(moments[i].fragmented_bytes >= 0 && moments[i].fragmented_bytes <= cached_bytes);
        assert_true(moments[i].largest_free_bytes >= 0 && moments[i].largest_free_bytes <= cached_bytes);
    }
}

static void test_random_plans(void **state)
{
    (void)state;
    int n_checked = 0;
    for (uint64_t seed = 1; seed <= N_PLANS; seed++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *words = random_plan_words(seed);
        g_autoptr(Plan) plan = plan_of_words(words, &error);
        if (plan == NULL) {
            continue;
        }
        const RunOptions asked = {.memory_rank = -1, .phases = TRUE}, plain = {.memory_rank = -1};
        g_autoptr(Result) result = run_plan(plan, &asked, &error), without = run_plan(plan, &plain, &error);
        check_no_error(error);
        assert_null(without->phases);
        check_int(without->peak_memory_bytes, result->peak_memory_bytes);
        check_int(without->reserved_memory_bytes, result->reserved_memory_bytes);
        assert_non_null(result->phases);
        check_phases(result);
        n_checked++;
    }
    assert_true(n_checked > N_PLANS / 2);
}

/* A device that has just enough: the allocator gives cached segments back, or finds no room, and the result says which. */
static void test_small_devices(void **state)
{
    (void)state;
    int n_retried = 0, n_failed = 0;
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_of_words("model=olmoe-1b-7b cluster.preset=h200-sxm cluster.nodes=1 cluster.gpus_per_node=8 parallel.ep=8 "
                                           "workload.seq_len=4096 workload.global_batch=8", &error);
    check_no_error(error);
    const RunOptions asked = {.memory_rank = -1, .phases = TRUE};
    g_autoptr(Result) roomy = run_plan(plan, &asked, &error);
    check_no_error(error);
    check_int(roomy->phases->n_retries, 0);
    Device device = *plan->cluster->device;
    Cluster cluster = *plan->cluster;
    Plan small = *plan;
    cluster.device = &device;
    small.cluster = &cluster;
    int64_t needed = roomy->peak_memory_bytes + roomy->non_framework_bytes;
    int64_t cached = roomy->phases->moments[MOMENT_PEAK].reserved_bytes - roomy->peak_memory_bytes;
    assert_true(cached > 0);
    for (int part = 0; part <= 8; part++) {
        device.usable_bytes = needed + cached * part / 8;
        g_autoptr(Result) result = run_plan(&small, &asked, &error);
        check_no_error(error);
        assert_true(result->fits);
        if (result->phases == NULL) {
            assert_true(result->warnings->len > 0);
            check_contains(g_ptr_array_index(result->warnings, result->warnings->len - 1), "not in one piece");
            n_failed++;
            continue;
        }
        check_phases(result);
        n_retried += result->phases->n_retries > 0 ? 1 : 0;
        for (int i = 0; i < N_MOMENTS; i++) {
            assert_true(result->phases->moments[i].reserved_bytes + result->non_framework_bytes <= device.usable_bytes);
        }
        assert_true(part < 8 || result->phases->n_retries == 0);
    }
    assert_true(n_retried > 0 && n_failed > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_plans), cmocka_unit_test(test_small_devices)};
    return cmocka_run_group_tests_name("moments", tests, NULL, NULL);
}
