/*
 * Random plans, one after the other through one memory: what is remembered changes no number. Times to the nanosecond are
 * those of the simulation that folds nothing; programs are those lowered from scratch; results those of a run alone.
 */
#include "tests/property/random-plan.h"

#include "workloads/lower/lower.h"
#include "workloads/run/groups.h"
#include "workloads/run/run.h"
#include "workloads/run/session.h"
#include "workloads/run/step.h"

enum { N_PLANS = 500, N_RESULTS = 120 };

/* A random plan, every fourth of many micro-batches, or its neighbour with another cut of the loss. */
static Plan *make_plan(uint64_t seed, gboolean neighbour, GError **error)
{
    g_autofree char *words = random_plan_words(seed);
    g_autofree char *more = g_strdup_printf("%s%s", words, neighbour ? " loss.seq_chunk=48" : "");
    g_autoptr(Plan) plan = plan_of_words(more, error);
    if (plan == NULL || seed % 4 != 1) {
        return g_steal_pointer(&plan);
    }
    g_autofree char *longer = g_strdup_printf("%s workload.global_batch=%d", more, (int)plan->global_batch * 7);
    return plan_of_words(longer, error);
}

static void check_times(const StepTimes *a, const StepTimes *b, uint64_t seed)
{
    StepTimes x = *a, y = *b;
    x.n_events = y.n_events = 0;
    if (memcmp(&x, &y, sizeof x) != 0) {
        g_autofree char *words = random_plan_words(seed);
        for (size_t i = 0; i < sizeof x / 8; i++) {
            int64_t p, q;
            memcpy(&p, (const char *)&x + 8 * i, 8);
            memcpy(&q, (const char *)&y + 8 * i, 8);
            if (p != q) {
                print_error("word %d of the times: %" G_GINT64_FORMAT " folded, %" G_GINT64_FORMAT " unfolded\n", (int)i, p, q);
            }
        }
        fail_msg("seed %" G_GUINT64_FORMAT ": step %" G_GINT64_FORMAT " ns folded, %" G_GINT64_FORMAT " ns unfolded: %s", seed,
                 x.step_ns, y.step_ns, words);
    }
}

static void test_times(void **state)
{
    (void)state;
    g_autoptr(StepMemo) memo = step_memo_new();
    int n = 0;
    for (uint64_t seed = 1; n < N_PLANS; seed++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) plan = make_plan(seed, seed % 3 == 0, NULL);
        if (plan == NULL) {
            continue;
        }
        g_autoptr(ModelGraph) graphs = lower_graphs(plan);
        RunGroups groups;
        assert_true(run_groups_init(&groups, NULL, plan, graphs, &error));
        Program *const *programs = (Program *const *)(void *)groups.programs->pdata;
        int64_t n_classes = groups.programs->len;
        StepTimes folded, unfolded;
        assert_true(step_run_memo(memo, plan, programs, n_classes, &folded, &error));
        assert_true(step_run_unfolded(plan, programs, n_classes, &unfolded, &error));
        run_groups_clear(&groups);
        check_times(&folded, &unfolded, seed);
        n++;
    }
}

/* Plans with their neighbours, each in turn: through a cache that makes everything anew and compares, and alone. */
static void test_results(void **state)
{
    (void)state;
    g_autoptr(RunCache) cache = run_cache_new();
    run_cache_verify(cache);
    int n = 0;
    for (uint64_t seed = 1; n < N_RESULTS; seed++) {
        for (int neighbour = 0; neighbour < 2; neighbour++) {
            g_autoptr(GError) error = NULL;
            g_autoptr(Plan) plan = make_plan(seed, neighbour, NULL);
            if (plan == NULL) {
                continue;
            }
            g_autoptr(Result) cached = run_plan_cached(cache, plan, NULL, &error);
            check_no_error(error);
            g_autoptr(Result) alone = run_plan(plan, NULL, &error);
            check_no_error(error);
            g_autoptr(json_t) a = result_to_json(cached), b = result_to_json(alone);
            assert_true(json_equal(a, b));
            n++;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_times), cmocka_unit_test(test_results)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
