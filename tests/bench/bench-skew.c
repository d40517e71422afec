/*
 * Steps under skewed routing: Kimi K3 on 1,024 GPUs, 16 expert-parallel groups of 64, each with tokens of its own; collectives as
 * flows and in closed form. Then all 64 ranks of one group side by side, each a class of its own. And how many events the
 * network costs: instructions in the program, works started.
 */
#include "tests/bench/bench.h"

#include "workloads/lower/lower.h"
#include "workloads/plan/routing.h"
#include "workloads/run/run.h"
#include "workloads/run/step.h"

static const char plan_text[] =
    "{\"model\": \"kimi-k3\", \"cluster\": {\"preset\": \"h200-sxm\", \"nodes\": 128, \"gpus_per_node\": 8}, \"parallel\": {\"ep\": 64},"
    " \"precision\": {\"parameters\": \"bf16\"}, \"memory\": {\"recompute\": \"full\"}, \"network\": {\"level\": \"%s\"},"
    " \"workload\": {\"seq_len\": 8192, \"global_batch\": 1024, \"routing\": {\"kind\": \"zipf\", \"exponent\": 0.8, \"replicas\": 16}}}";

static Plan *plan_at(const char *level)
{
    g_autofree char *text = g_strdup_printf(plan_text, level);
    g_autoptr(json_t) value = json_loads(text, 0, NULL);
    g_autoptr(GError) error = NULL;
    Plan *plan = plan_from_json(value, "bench", NULL, &error);
    if (plan == NULL) {
        g_error("%s", error->message);
    }
    return plan;
}

static void bench_groups(const char *level)
{
    g_autoptr(Plan) plan = plan_at(level);
    double start_s = bench_cpu_s();
    g_autoptr(Result) result = run_plan(plan, NULL, NULL);
    g_assert(result != NULL && result->groups_sampled == 16);
    printf("16 groups of EP 64 under zipf, %-12s %5.2f s (bound 5.0): step %.6f s, shared links slow it for %.6f s; "
           "%d of 16 groups can decide\n", level, bench_cpu_s() - start_s, result->step_time_s, result->crowded_s,
           (int)result->groups_simulated);
}

/* Every rank of a group a class of its own. */
static void bench_ranks(const char *level)
{
    g_autoptr(Plan) plan = plan_at(level);
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    RoutingSpec spec = routing_spec(plan, plan->seq_len * plan->micro_batch, plan->micro_batch);
    g_autoptr(Routing) routing = routing_new(&spec, NULL);
    g_autoptr(GPtrArray) programs = g_ptr_array_new_with_free_func((GDestroyNotify)program_free);
    StepTimes times;
    for (int64_t rank = 0; rank < plan->ep; rank++) {
        g_ptr_array_add(programs, lower_plan(plan, graphs, routing, rank));
    }
    double start_s = bench_cpu_s();
    gboolean ok = step_run(plan, (Program *const *)(void *)programs->pdata, plan->ep, &times, NULL);
    g_assert(ok);
    double cpu_s = bench_cpu_s() - start_s;
    printf("64 ranks of one group, %-12s %20.2f s (bound 5.0): step %.6f s, %.2f M works, %.2f M/s\n", level, cpu_s,
           (double)times.step_ns * 1e-9, (double)times.n_events * 1e-6, (double)times.n_events * 1e-6 / cpu_s);
}

int main(void)
{
    static const char *const levels[] = {"closed_form", "flows"};
    for (int i = 0; i < 2; i++) {
        bench_groups(levels[i]);
    }
    for (int i = 0; i < 2; i++) {
        bench_ranks(levels[i]);
    }
    return 0;
}
