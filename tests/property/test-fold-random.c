/*
 * Random plans, one after the other through one memory: what is remembered changes no number. Times to the nanosecond are
 * those of the simulation that folds nothing; programs are those lowered from scratch; results those of a run alone.
 */
#include "tests/property/ledger-check.h"
#include "tests/property/random-plan.h"

#include "workloads/lower/lower.h"
#include "workloads/run/groups.h"
#include "workloads/run/run-cache.h"
#include "workloads/run/run.h"
#include "workloads/run/session.h"
#include "workloads/run/step-memo.h"
#include "workloads/run/step.h"

enum { N_PLANS = 500, N_RESULTS = 240, N_NEIGHBOURS = 4, N_MEMORY = 120, N_CUTS = 120 };

/* How the loss of a plan's neighbours is cut: as it is, rows, columns, both. */
static const char *const cuts[] = {"", " loss.seq_chunk=48", " loss.seq_chunk=48 loss.vocab_chunk=640", " loss.vocab_chunk=64",
                                   " loss.seq_chunk=0 loss.vocab_chunk=0 workload.seq_len=96", " loss.seq_chunk=17 loss.vocab_chunk=0",
                                   " loss.seq_chunk=96 loss.vocab_chunk=128", " loss.seq_chunk=17 workload.global_batch=240"};

/* A random plan, every fourth of many micro-batches, with a cut of the loss. */
static Plan *make_plan(uint64_t seed, const char *cut, GError **error)
{
    g_autofree char *words = random_plan_words(seed);
    g_autofree char *more = g_strconcat(words, cut, NULL);
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
    g_autoptr(RunCache) cache = run_cache_new();
    g_autoptr(StepMemo) hasty = step_memo_new(), rash = step_memo_new();
    hasty->ahead_min = rash->ahead_min = 12; /* lanes run ahead at once; too far, which is noticed */
    rash->ahead_whole = TRUE;
    for (uint64_t i = 0, n = 0; n < N_PLANS; i++) {
        uint64_t seed = 1 + i / 2; /* each with two cuts, every now and then of one frame */
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) plan = make_plan(seed, cuts[(seed + 4 * (i % 2)) % G_N_ELEMENTS(cuts)], NULL);
        if (plan == NULL) {
            continue;
        }
        run_cache_trim(cache, plan);
        if (i % 2 == 0) { /* they hold segments of graphs that may be gone */
            step_memo_clear(hasty);
            step_memo_clear(rash);
        }
        RunGroups groups;
        assert_true(run_groups_init(&groups, cache, plan, lower_cache_graphs(cache->lowered, plan), &error));
        Program *const *programs = (Program *const *)(void *)groups.programs->pdata;
        int64_t n_classes = groups.programs->len;
        StepTimes folded, unfolded;
        assert_true(step_run_memo(cache->steps, plan, programs, n_classes, &folded, &error));
        assert_true(step_run_unfolded(plan, programs, n_classes, &unfolded, &error));
        check_times(&folded, &unfolded, seed);
        assert_true(step_run_memo(hasty, plan, programs, n_classes, &folded, &error));
        check_times(&folded, &unfolded, seed);
        assert_true(step_run_memo(rash, plan, programs, n_classes, &folded, &error));
        check_times(&folded, &unfolded, seed);
        run_groups_clear(&groups);
        n++;
    }
    print_message("# ran ahead %d times; %d folds too far, %d when rash\n", (int)hasty->n_ran_ahead, (int)hasty->n_kept_back,
                  (int)rash->n_kept_back);
    assert_true(hasty->n_ran_ahead > N_PLANS && rash->n_kept_back > 0);
}

/* Memory through a memo, plan after plan and once more, is memory walked alone: in segments and in expandable ones. */
static void test_memory(void **state)
{
    (void)state;
    g_autoptr(LowerCache) lowered = lower_cache_new();
    g_autoptr(LedgerMemo) memo = ledger_memo_new();
    for (uint64_t seed = 1; seed <= N_MEMORY; seed++) {
        g_autofree char *words = random_plan_words(seed);
        for (size_t i = 0; i < 3 * G_N_ELEMENTS(cuts); i++) {
            const char *allocator = i % 3 == 1 ? " memory.expandable_segments=true" : "";
            g_autofree char *all = g_strconcat(words, cuts[i % G_N_ELEMENTS(cuts)], allocator, NULL);
            g_autoptr(Plan) plan = plan_of_words(all, NULL);
            if (plan == NULL || routing_is_needed(plan)) {
                continue;
            }
            g_autoptr(GError) error = NULL;
            g_autoptr(Program) program = lower_plan_cached(lowered, plan, lower_cache_graphs(lowered, plan), NULL, 0);
            Ledger alone, folded;
            assert_true(ledger_run(program, 0, &alone, &error));
            assert_true(ledger_run_memo(memo, program, 0, &folded, &error));
            check_ledger(&folded, &alone, all);
        }
    }
}

/* Models as they are, their loss cut in many ways. */
static const char *const large_plans[] = {
    "model.config=kimi-k3 cluster.preset=h200-sxm cluster.nodes=64 cluster.gpus_per_node=8 workload.mode=lora workload.seq_len=8192 "
    "workload.micro_batch=1 workload.global_batch=512 precision.parameters=bf16 parallel.ep=64",
    "model.config=deepseek-v3 cluster.preset=h200-sxm cluster.nodes=32 cluster.gpus_per_node=8 workload.seq_len=4096 "
    "workload.micro_batch=1 workload.global_batch=512 parallel.ep=32",
};

/*
 * One plan, its loss cut in many ways. What a loss leaves over makes the backward pass choose other blocks, until memory looks
 * as it has looked before: from there on nothing is walked again, and every number is that of the whole walk.
 */
static void check_endings(const char *words, LowerCache *lowered, LedgerMemo *memo)
{
    g_autoptr(Plan) plan = plan_of_words(words, NULL);
    for (uint64_t i = 0; plan != NULL && !routing_is_needed(plan) && i < N_CUTS; i++) {
        g_autoptr(GError) error = NULL;
        plan->seq_chunk = 1 + (int64_t)random_below(i, 0, (uint64_t)plan->seq_len);
        plan->vocab_chunk = i % 3 == 0 ? 0 : 64 + (int64_t)random_below(i, 1, 100000);
        g_autoptr(Program) program = lower_plan_cached(lowered, plan, lower_cache_graphs(lowered, plan), NULL, 0);
        Ledger alone, folded;
        assert_true(ledger_run(program, 0, &alone, &error));
        assert_true(ledger_run_memo(memo, program, 0, &folded, &error));
        check_ledger(&folded, &alone, words);
    }
}

static void test_endings(void **state)
{
    (void)state;
    static const char *const recomputes[] = {"none", "full", "selective"};
    g_autoptr(LowerCache) lowered = lower_cache_new();
    g_autoptr(LedgerMemo) memo = ledger_memo_new();
    for (size_t i = 0; i < 6 * G_N_ELEMENTS(large_plans); i++) {
        g_autofree char *words = g_strdup_printf("%s memory.recompute=%s memory.expandable_segments=%s", large_plans[i / 6],
                                                 recomputes[i / 2 % 3], i % 2 == 0 ? "false" : "true");
        check_endings(words, lowered, memo);
    }
    for (uint64_t seed = 1; seed <= N_MEMORY; seed++) {
        g_autofree char *words = random_plan_words(seed);
        g_autofree char *all = g_strconcat(words, seed % 2 == 0 ? " memory.expandable_segments=true" : "", NULL);
        check_endings(all, lowered, memo);
    }
    const LedgerEndingCounts *counts = ledger_memo_ending_counts(memo);
    print_message("# endings: %d known, %d met, %d from logs, %d of them odd, %d calls walked\n", (int)counts->n_known, (int)counts->n_met,
                  (int)counts->n_replayed, (int)counts->n_odd, (int)counts->n_calls_walked);
    assert_true(counts->n_known > N_CUTS && counts->n_met > N_CUTS / 2 && counts->n_replayed > N_CUTS / 2);
}

/* Plans with their neighbours, each in turn: through a cache that makes everything anew and compares, and alone. */
static void test_results(void **state)
{
    (void)state;
    g_autoptr(RunCache) cache = run_cache_new();
    run_cache_verify(cache);
    int n = 0;
    for (uint64_t seed = 1; n < N_RESULTS; seed++) {
        for (uint64_t neighbour = 0; neighbour < N_NEIGHBOURS; neighbour++) {
            g_autoptr(GError) error = NULL;
            g_autoptr(Plan) plan = make_plan(seed, cuts[(seed + neighbour) % G_N_ELEMENTS(cuts)], NULL);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory), cmocka_unit_test(test_endings), cmocka_unit_test(test_times), cmocka_unit_test(test_results)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
