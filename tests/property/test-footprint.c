/* Memory computed twice: from lifetimes (footprint) and from the instructions (ledger), on random plans, to the byte. */
#include "tests/property/random-plan.h"

#include "workloads/lower/lower.h"
#include "workloads/run/footprint-pass.h"
#include "workloads/run/footprint.h"
#include "workloads/run/ledger.h"

enum { N_PLANS = 400 };

static gboolean agrees(const char *words, const char *what, int64_t footprint, int64_t ledger)
{
    if (footprint == ledger) {
        return TRUE;
    }
    print_error("%s: footprint %" G_GINT64_FORMAT ", ledger %" G_GINT64_FORMAT " (%+" G_GINT64_FORMAT "): %s\n", what, footprint,
                ledger, footprint - ledger, words);
    return FALSE;
}

/* The optimizer's rounds of whole matrices alone, whose peak is seldom that of the step. */
static gboolean check_optimizer(const char *words, const Plan *plan, const ModelGraph *graphs, const Routing *routing)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Program) program = lower_plan(plan, graphs, routing, 0);
    Ledger ledger;
    guint kept = 0;
    for (guint c = 0; c < program->calls->len; c++) {
        Call *call = &g_array_index(program->calls, Call, c);
        const char *name = program_segment(program, call->segment)->name;
        if (strcmp(name, "matrices made orthogonal") == 0 || strcmp(name, "updated tensors gathered") == 0 ||
            g_str_has_prefix(name, "optimizer states ")) {
            g_array_index(program->calls, Call, kept++) = *call;
        }
    }
    g_array_set_size(program->calls, kept);
    memset(program->static_bytes, 0, sizeof program->static_bytes);
    program->repeat = (CallRepeat){0};
    gboolean ok = ledger_run(program, 0, &ledger, &error);
    check_no_error(error);
    assert_true(plan->optimizer != PLAN_MUON || kept > 0);
    return ok && agrees(words, "optimizer", footprint_optimizer_peak(plan, graphs), ledger.rounded_peak_bytes);
}

/* One class of ranks of a plan. */
static gboolean check_class(const char *words, const Plan *plan, const ModelGraph *graphs, const Routing *routing, int64_t ep_rank)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Program) program = lower_plan(plan, graphs, routing, ep_rank);
    Ledger ledger;
    Footprint footprint;
    gboolean ok = ledger_run(program, 0, &ledger, &error);
    if (!ok) {
        print_error("%s: %s\n", words, error->message);
        return FALSE;
    }
    assert_true(footprint_compute(plan, graphs, NULL, routing, ep_rank, &footprint));
    ok = agrees(words, "static", footprint.static_bytes, lower_static_bytes(program));
    ok &= agrees(words, "after forward", footprint.after_forward_bytes, ledger.rounded_after_forward_bytes);
    ok &= agrees(words, "peak", footprint.peak_bytes, ledger.rounded_peak_bytes);
    /* the allocator's blocks are never smaller than what was asked for */
    return ok && ledger.peak_bytes >= ledger.rounded_peak_bytes;
}

static gboolean check_plan(const char *words)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_of_words(words, &error);
    if (error != NULL) {
        print_error("%s: %s\n", words, error->message);
        return FALSE;
    }
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    g_autoptr(Routing) routing = NULL;
    if (routing_is_needed(plan)) {
        RoutingSpec spec = routing_spec(plan, plan->seq_len * plan->micro_batch, plan->micro_batch);
        routing = routing_new(&spec, &error);
    }
    check_no_error(error);
    gboolean ok = check_optimizer(words, plan, graphs, routing);
    for (int64_t c = 0; c < (routing != NULL ? plan->ep : 1); c++) {
        ok &= check_class(words, plan, graphs, routing, c);
    }
    return ok;
}

static void test_random_plans(void **state)
{
    (void)state;
    int n_bad = 0;
    for (uint64_t seed = 0; seed < N_PLANS && n_bad < 5; seed++) {
        g_autofree char *words = random_plan_words(seed);
        n_bad += !check_plan(words);
    }
    check_int(n_bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_plans)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
