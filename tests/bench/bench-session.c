/*
 * Configurations per second on one core: a grid of layouts of the 2.8 T parameter model (FSDP x EP x loss chunk x
 * recomputation) through one session, against the same rows each from scratch with every layer and micro-batch simulated.
 * Each row's time and memory must be the same both ways.
 */
#include "tests/bench/bench.h"

#include <math.h>

#include "sim/base/json-read.h"
#include "workloads/lower/lower.h"
#include "workloads/run/groups.h"
#include "workloads/run/session.h"
#include "workloads/run/step.h"

static const char base_text[] =
    "{\"model\": \"kimi-k3\", \"cluster\": {\"preset\": \"h200-sxm\", \"nodes\": 16, \"gpus_per_node\": 8},"
    " \"parallel\": {\"dp_shard\": -1, \"ep\": 64},"
    " \"workload\": {\"mode\": \"lora\", \"seq_len\": 8192, \"micro_batch\": 1, \"global_batch\": 128},"
    " \"memory\": {\"recompute\": \"full\"}, \"loss\": {\"seq_chunk\": 2048}, \"precision\": {\"parameters\": \"bf16\"}}";

static const int replicas[] = {1, 2, 4, 8}, eps[] = {8, 16, 32, 64, 128};
static const int chunks[] = {0, 512, 1024, 1536, 2048, 3072, 4096, 8192};
static const char *const recomputes[] = {"none", "full", "selective"};

enum { N_ROWS = 4 * 5 * 8 * 3, SAMPLED = 29 }; /* every so manieth row is also made from scratch */

/* The row-th configuration; chunks change fastest, then recomputation, then EP. */
static json_t *configuration(int row)
{
    json_t *plan = json_loads(base_text, 0, NULL);
    json_object_set_new(json_object_get(plan, "loss"), "seq_chunk", json_integer(chunks[row % 8]));
    json_object_set_new(json_object_get(plan, "memory"), "recompute", json_string(recomputes[row / 8 % 3]));
    json_object_set_new(json_object_get(plan, "parallel"), "ep", json_integer(eps[row / 24 % 5]));
    json_object_set_new(json_object_get(plan, "parallel"), "dp_replicate", json_integer(replicas[row / 120]));
    return plan;
}

/* Everything anew, nothing folded. Returns the step's time. */
static SimTime from_scratch(json_t *value)
{
    g_autoptr(Plan) plan = plan_from_json(value, "plan", NULL, NULL);
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    RunGroups groups;
    GroupMemory memory;
    StepTimes times;
    g_assert(run_groups_init(&groups, NULL, plan, graphs, NULL));
    g_assert(run_groups_memory(&groups, -1, &memory, NULL));
    g_assert(step_run_unfolded(plan, (Program *const *)(void *)groups.programs->pdata, groups.programs->len, &times, NULL));
    group_memory_clear(&memory);
    run_groups_clear(&groups);
    return times.step_ns;
}

int main(void)
{
    g_autoptr(Session) session = session_new();
    double folded_s = 0, scratch_s = 0;
    int n = 0, n_scratch = 0;
    for (int row = 0; row < N_ROWS; row++) {
        g_autoptr(json_t) value = configuration(row);
        double start_s = bench_cpu_s();
        g_autoptr(Plan) plan = session_plan(session, value, "plan", NULL, NULL);
        g_autoptr(Result) result = plan != NULL ? session_run(session, plan, NULL) : NULL;
        folded_s += bench_cpu_s() - start_s;
        if (result == NULL) {
            continue; /* more experts' ranks than shards: no row */
        }
        n++;
        if (n % SAMPLED == 0) {
            start_s = bench_cpu_s();
            SimTime step_ns = from_scratch(value);
            scratch_s += bench_cpu_s() - start_s;
            n_scratch++;
            g_assert(llround(result->step_time_s * 1e9) == step_ns);
        }
    }
    printf("%d rows: %.0f/s in one session, %.3f ms a row; from scratch and unfolded %.0f/s, %.1f ms a row; ratio %.1f (target 10000/s)\n", n,
           n / folded_s, 1e3 * folded_s / n, n_scratch / scratch_s, 1e3 * scratch_s / n_scratch,
           scratch_s / n_scratch / (folded_s / n));
    return 0;
}
