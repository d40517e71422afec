/*
 * Folded = unfolded: a step whose repeated micro-batches are left out takes, to the nanosecond, what it takes when every
 * one of them is simulated.
 */
#include "tests/check.h"

#include "sim/base/error.h"
#include "sim/base/json-read.h"
#include "workloads/cases.h"
#include "workloads/lower/lower.h"
#include "workloads/run/run.h"
#include "workloads/run/step.h"

typedef struct FoldCase {
    const char *name;
    const char *fields; /* "path=value" words; 12 micro-batches */
    gboolean crowded;   /* links slow collectives down */
} FoldCase;

static const FoldCase cases[] = {
    {"dense", "model=llama-3.1-8b cluster.nodes=1 workload.global_batch=96", TRUE},
    {"dense, explicit", "model=llama-3.1-8b cluster.nodes=1 workload.global_batch=96 parallel.fsdp.prefetch=explicit", TRUE},
    {"dense, no reshard", "model=llama-3.1-8b cluster.nodes=1 workload.global_batch=96 parallel.fsdp.reshard_after_forward=false", FALSE},
    {"dense, host-bound", "model=llama-3.1-8b cluster.nodes=1 workload.global_batch=96 workload.seq_len=64 kernels=eager", TRUE},
    {"replicas", "model=llama-3.1-8b cluster.nodes=2 workload.global_batch=192 parallel.dp_replicate=2", TRUE},
    {"experts", "model=olmoe-1b-7b cluster.nodes=1 workload.global_batch=96 parallel.ep=8 memory.recompute=full", TRUE},
    {"experts, skewed",
     "model=olmoe-1b-7b cluster.nodes=1 workload.global_batch=96 parallel.ep=4 workload.routing.kind=zipf workload.routing.exponent=1.0", TRUE},
    {"experts over nodes",
     "model=qwen3-30b-a3b cluster.nodes=4 workload.global_batch=384 parallel.ep=16 memory.recompute=full workload.routing.kind=zipf", TRUE},
    {"passes side by side",
     "model=qwen3-30b-a3b cluster.nodes=2 workload.global_batch=192 parallel.ep=16 parallel.sharding=zero1 precision.parameters=bf16 "
     "moe.overlap_micro_batches=true", FALSE},
    {"passes side by side, skewed",
     "model=olmoe-1b-7b cluster.nodes=1 workload.global_batch=96 parallel.ep=4 parallel.sharding=none precision.parameters=bf16 "
     "moe.overlap_micro_batches=true moe.dispatch=deepep workload.routing.kind=zipf workload.routing.exponent=1.0", FALSE},
    {"loss in chunks", "model=llama-3.1-8b cluster.nodes=1 workload.global_batch=96 loss.seq_chunk=1000", TRUE},
    {"attention residuals", "model=kimi-k3-mini cluster.nodes=1 workload.global_batch=96 parallel.ep=2", FALSE},
};

static Plan *make_plan(const char *fields)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) value = json_object();
    g_autofree char *all = g_strdup_printf("cluster.preset=h200-sxm cluster.gpus_per_node=8 %s", fields);
    g_auto(GStrv) words = g_strsplit(all, " ", -1);
    for (char **word = words; *word != NULL; word++) {
        char *equals = strchr(*word, '=');
        assert_non_null(equals);
        *equals = '\0';
        json_t *cell = cases_cell_value(*word, equals + 1, &error);
        check_no_error(error);
        assert_true(cases_set(value, *word, cell, &error));
    }
    Plan *plan = plan_from_json(value, "plan", NULL, &error);
    check_no_error(error);
    return plan;
}

/* What an observer is told: kernels of the first class by label, and when it saw the step begin and end. */
typedef struct Seen {
    Program *const *programs;
    int64_t ran[N_LABELS];
    SimTime first_mark_ns, last_mark_ns, last_host_ns;
} Seen;

static const Instr *seen_instr(const Seen *seen, const StepSite *site)
{
    const Program *program = seen->programs[site->rank_class];
    const Call *call = &g_array_index(program->calls, Call, (guint)site->call);
    return &g_array_index(program_segment(program, call->segment)->instrs, Instr, (guint)site->instr);
}

static void see_issued(void *self, const StepSite *site, SimTime host_ns)
{
    Seen *seen = self;
    if (site->rank_class == 0) {
        assert_true(host_ns >= seen->last_host_ns);
        seen->last_host_ns = host_ns;
    }
}

static void see_ran(void *self, const StepSite *site, SimTime start_ns, SimTime end_ns)
{
    Seen *seen = self;
    const Instr *instr = seen_instr(seen, site);
    assert_true(end_ns - start_ns >= program_instr_ns(&seen->programs[site->rank_class]->clock, instr) - instr->n_launches); /* never faster than alone */
    seen->ran[instr->label] += site->rank_class == 0 ? instr->n_launches : 0;
}

static void see_marked(void *self, gint32 rank_class, Phase phase, SimTime ns)
{
    Seen *seen = self;
    if (rank_class == 0) {
        assert_true(seen->first_mark_ns >= 0 || phase == PHASE_OPTIMIZER);
        seen->first_mark_ns = seen->first_mark_ns < 0 ? ns : seen->first_mark_ns;
        seen->last_mark_ns = ns;
    }
}

/* Watching changes nothing, and everything of the step is seen. */
static void check_observed(const Plan *plan, Program *const *programs, int64_t n, const StepTimes *times)
{
    Seen seen = {.programs = programs, .first_mark_ns = -1};
    StepObserver observer = {see_issued, see_ran, see_marked, &seen};
    StepTimes observed;
    assert_true(step_observe(plan, programs, n, programs[0]->repeat.times, &observer, &observed, NULL));
    assert_memory_equal(&observed, times, sizeof observed);
    check_int(seen.last_mark_ns - seen.first_mark_ns, times->step_ns);
    for (int label = 0; label < N_LABELS; label++) {
        check_int(seen.ran[label], times->launches[label]);
    }
}

static void test_fold(void **state)
{
    const FoldCase *fold = *state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = make_plan(fold->fields);
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    g_autoptr(Routing) routing = NULL;
    StepTimes folded, unfolded;
    if (routing_is_needed(plan)) {
        RoutingSpec spec = routing_spec(plan, plan->seq_len * plan->micro_batch, plan->micro_batch);
        routing = routing_new(&spec, &error);
        check_no_error(error);
    }
    /* all ranks of an expert-parallel group, or one that stands for all */
    int64_t n = routing != NULL ? plan->ep : 1;
    g_autofree Program **programs = g_new0(Program *, n);
    for (int64_t c = 0; c < n; c++) {
        programs[c] = lower_plan(plan, graphs, routing, c);
    }
    check_int(plan->n_micro_batches, 12);
    assert_true(step_run(plan, programs, n, &folded, &error));
    assert_true(step_run_unfolded(plan, programs, n, &unfolded, &error));
    check_int(folded.step_ns, unfolded.step_ns);
    check_int(folded.exposed_comm_ns, unfolded.exposed_comm_ns);
    check_int(folded.exposed_host_ns, unfolded.exposed_host_ns);
    check_int(folded.crowded_ns, unfolded.crowded_ns);
    assert_true((folded.crowded_ns > 0) == fold->crowded);
    for (int p = 0; p < N_PHASES; p++) {
        check_int(folded.phase_ns[p], unfolded.phase_ns[p]);
    }
    for (int label = 0; label < N_LABELS; label++) {
        check_int(folded.busy_ns[label], unfolded.busy_ns[label]);
        check_int(folded.launches[label], unfolded.launches[label]);
    }
    assert_true(folded.n_events < unfolded.n_events);
    check_observed(plan, programs, n, &unfolded);
    for (int64_t c = 0; c < n; c++) {
        program_free(programs[c]);
    }
}

/* As many micro-batches as a plan can have: each is as long as the others, and what is counted is counted for each. */
static void test_many(void **state)
{
    (void)state;
    static const int64_t batches[] = {1024, 2048, 8193, 1 << 20, 1 << 30};
    static const char *const fields[] = {
        "model=llama-3.1-8b model.overrides.num_hidden_layers=2 cluster.nodes=1 cluster.gpus_per_node=1 workload.seq_len=512 precision.parameters=bf16",
        "model=olmoe-1b-7b cluster.nodes=1 cluster.gpus_per_node=1 workload.seq_len=256 workload.routing.kind=zipf",
    };
    for (size_t f = 0; f < G_N_ELEMENTS(fields); f++) {
        Result *results[G_N_ELEMENTS(batches)];
        for (size_t i = 0; i < G_N_ELEMENTS(batches); i++) {
            g_autoptr(GError) error = NULL;
            g_autofree char *words = g_strdup_printf("%s workload.global_batch=%" G_GINT64_FORMAT, fields[f], batches[i]);
            g_autoptr(Plan) plan = make_plan(words);
            results[i] = run_plan(plan, NULL, &error);
            check_no_error(error);
        }
        double turn_s = (results[1]->step_time_s - results[0]->step_time_s) / (double)(batches[1] - batches[0]);
        const ResultOperator *first = g_ptr_array_index(results[0]->operators, 0);
        for (size_t i = 2; i < G_N_ELEMENTS(batches); i++) {
            check_close(results[i]->step_time_s, results[0]->step_time_s + turn_s * (double)(batches[i] - batches[0]), 1e-9);
            check_int(results[i]->peak_memory_bytes, results[0]->peak_memory_bytes);
            const ResultOperator *operator = g_ptr_array_index(results[i]->operators, 0);
            check_string(operator->name, first->name);
            check_close((double)operator->launches / (double)batches[i], (double)first->launches / (double)batches[0], 1e-2);
        }
        for (size_t i = 0; i < G_N_ELEMENTS(batches); i++) {
            result_free(results[i]);
        }
    }
}

/* More than int64 nanoseconds hold is refused, and where that begins nothing has overflowed. */
static void test_too_many(void **state)
{
    (void)state;
    gboolean refused = FALSE;
    double last_s = 0;
    for (int64_t batch = 1 << 14; batch <= 1 << 30; batch *= 2) {
        g_autoptr(GError) error = NULL;
        g_autofree char *words = g_strdup_printf("model=kimi-k3 cluster.nodes=1 cluster.gpus_per_node=1 workload.seq_len=1024 "
                                                 "memory.recompute=full workload.global_batch=%" G_GINT64_FORMAT, batch);
        g_autoptr(Plan) plan = make_plan(words);
        g_autoptr(Result) result = run_plan(plan, NULL, &error);
        assert_true(refused ? result == NULL : TRUE);
        if (result == NULL) {
            refused = TRUE;
            check_error(&error, MOESIM_ERROR_INPUT, "micro-batches per rank make a step of more than nine years");
            continue;
        }
        assert_true(result->step_time_s > last_s && result->step_time_s < 300e6);
        last_s = result->step_time_s;
    }
    assert_true(refused && last_s > 0);
}

int main(void)
{
    struct CMUnitTest tests[G_N_ELEMENTS(cases) + 2] = {0};
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        tests[i] = (struct CMUnitTest){.name = cases[i].name, .test_func = test_fold, .initial_state = (void *)(uintptr_t)&cases[i]};
    }
    tests[G_N_ELEMENTS(cases)] = (struct CMUnitTest){.name = "as many micro-batches as there can be", .test_func = test_many};
    tests[G_N_ELEMENTS(cases) + 1] = (struct CMUnitTest){.name = "more than can be counted", .test_func = test_too_many};
    return _cmocka_run_group_tests("fold", tests, G_N_ELEMENTS(tests), NULL, NULL);
}
