/* The largest chunk of the loss that fits does fit, and the next larger one does not. */
#include "tests/property/random-plan.h"

#include "workloads/lower/lower.h"
#include "workloads/run/chunk-bound.h"
#include "workloads/run/run.h"

static Plan *plan_of_chunk(int64_t chunk)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *words = g_strdup_printf(
        "model.config=llama-3.1-8b model.overrides.num_hidden_layers=4 model.overrides.vocab_size=500000 cluster.preset=h200-sxm "
        "cluster.nodes=1 cluster.gpus_per_node=1 workload.seq_len=32768 memory.recompute=full kernels=eager loss.seq_chunk=%d",
        (int)chunk);
    Plan *plan = plan_of_words(words, &error);
    check_no_error(error);
    return plan;
}

static gboolean fits(int64_t chunk)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_of_chunk(chunk);
    g_autoptr(Result) result = run_plan(plan, NULL, &error);
    check_no_error(error);
    return result->fits;
}

static void test_largest(void **state)
{
    (void)state;
    g_autoptr(Plan) plan = plan_of_chunk(1024);
    int64_t tokens = chunk_bound_tokens(plan);
    print_message("# %d tokens\n", (int)tokens);
    assert_true(tokens > 1024 && tokens < 32768);
    assert_true(fits(tokens));
    assert_false(fits(2 * tokens));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_largest)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
