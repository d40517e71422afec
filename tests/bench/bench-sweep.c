/*
 * Rows per second of a sweep on one core: a grid of layouts of the 2.8 T parameter model (FSDP x EP x recomputation x chunks
 * of the loss), row by row as `moesim sweep` writes them, against the same rows each from scratch with every layer and
 * micro-batch simulated. Each row's time and memory must be the same both ways. Also: what of a row is not the engine's
 * (building the plan, reading and checking it, writing the row), and the memory of the process as rows go by.
 *
 * usage: bench-sweep [ROWS]
 */
#include "tests/bench/bench.h"

#include <math.h>

#include "reports/cli/sweep-rows.h"
#include "sim/base/json-read.h"
#include "workloads/lower/lower.h"
#include "workloads/run/groups.h"
#include "workloads/run/step.h"

static const char grid_text[] =
    "{\"base\": {\"model\": \"kimi-k3\", \"cluster\": {\"preset\": \"h200-sxm\", \"nodes\": 64, \"gpus_per_node\": 8},"
    " \"workload\": {\"mode\": \"lora\", \"seq_len\": 8192, \"micro_batch\": 1, \"global_batch\": 512},"
    " \"precision\": {\"parameters\": \"bf16\"}},"
    " \"grid\": {\"parallel.dp_replicate\": [1, 2, 4, 8], \"parallel.ep\": [8, 16, 32, 64, 128],"
    " \"memory.recompute\": [\"none\", \"full\", \"selective\"],"
    " \"loss.seq_chunk\": {\"from\": 512, \"to\": 8192, \"step\": %d},"
    " \"loss.vocab_chunk\": {\"from\": 8192, \"to\": 163840, \"step\": %d}}}";

/* Chunk pairs of a layout by the rows that are asked for: 20 x 10, or 128 x 20. */
enum { ROWS = 12000, SAMPLED = 577, MARKS = 4 };

static Sweep *grid_of(int64_t n_rows, json_t *schema)
{
    gboolean many = n_rows > ROWS;
    g_autofree char *text = g_strdup_printf(grid_text, many ? 60 : 400, many ? 8192 : 16384);
    Sweep *sweep = sweep_parse(text, "grid", schema, NULL);
    g_assert(sweep != NULL);
    return sweep;
}

static json_t *plan_schema(void)
{
    const char *root = g_getenv("MOESIM_SOURCE_ROOT");
    g_autofree char *path = g_build_filename(root != NULL ? root : ".", "reports/schema/plan.schema.json", NULL);
    json_t *schema = json_load_file(path, 0, NULL);
    g_assert(schema != NULL);
    return schema;
}

static double resident_mib(void)
{
    long pages = 0, all;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file != NULL) {
        if (fscanf(file, "%ld %ld", &all, &pages) != 2) {
            pages = 0;
        }
        fclose(file);
    }
    return (double)pages * 4096 / (1 << 20);
}

/* Everything anew, nothing folded; its CPU seconds. */
static double check_from_scratch(const Sweep *sweep, int64_t point, const Result *result)
{
    double start_s = bench_cpu_s();
    g_autoptr(json_t) value = sweep_plan(sweep, point, NULL);
    g_autoptr(Plan) plan = plan_from_json(value, "plan", NULL, NULL);
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    RunGroups groups;
    GroupMemory memory;
    StepTimes times;
    g_assert(run_groups_init(&groups, NULL, plan, graphs, NULL));
    g_assert(run_groups_memory(&groups, -1, &memory, NULL));
    g_assert(step_run_unfolded(plan, (Program *const *)(void *)groups.programs->pdata, groups.programs->len, &times, NULL));
    g_assert(llround(result->step_time_s * 1e9) == times.step_ns && result->peak_memory_bytes == memory.ledger.peak_bytes);
    group_memory_clear(&memory);
    run_groups_clear(&groups);
    return bench_cpu_s() - start_s;
}

/* CPU seconds of what a row takes beside its engine: its plan, and its text. */
static double front_s(SweepWorker *worker, const SweepLayout *layout, Table *table, int64_t point, const SweepOutcome *outcome,
                      GString *row)
{
    double start_s = bench_cpu_s();
    g_autoptr(Plan) plan = sweep_point_plan(worker, point);
    g_string_truncate(row, 0);
    sweep_layout_append_row(layout, table, point, outcome, row);
    return bench_cpu_s() - start_s;
}

int main(int argc, char **argv)
{
    int64_t n_rows = argc > 1 ? g_ascii_strtoll(argv[1], NULL, 10) : ROWS;
    g_autoptr(json_t) schema = plan_schema();
    g_autoptr(Sweep) sweep = grid_of(n_rows, schema);
    g_autoptr(SweepLayout) layout = sweep_layout_new(sweep, ROW_CSV, NULL);
    g_autoptr(Table) table = sweep_layout_table(layout);
    g_autoptr(SweepWorker) worker = sweep_worker_new(sweep), planner = sweep_worker_new(sweep);
    g_autoptr(GString) row = g_string_new(NULL);
    double folded_s = 0, scratch_s = 0, fronts_s = 0;
    int64_t n = 0, n_scratch = 0;
    n_rows = MIN(n_rows, sweep->n_points);
    for (int64_t i = 0; i < n_rows; i++) {
        SweepOutcome outcome;
        double start_s = bench_cpu_s();
        sweep_evaluate(worker, i, &outcome);
        g_string_truncate(row, 0);
        sweep_layout_append_row(layout, table, i, &outcome, row);
        folded_s += bench_cpu_s() - start_s;
        n += outcome.result != NULL;
        fronts_s += front_s(planner, layout, table, i, &outcome, row);
        if (i % SAMPLED == 0 && outcome.result != NULL) {
            scratch_s += check_from_scratch(sweep, i, outcome.result);
            n_scratch++;
        }
        sweep_outcome_clear(&outcome);
        if ((i + 1) % MAX(1, n_rows / MARKS) == 0) {
            printf("%8" G_GINT64_FORMAT " rows: %.0f MiB resident, %.0f rows/s\n", i + 1, resident_mib(), (double)n / folded_s);
        }
    }
    printf("%" G_GINT64_FORMAT " rows: %.0f/s, %.1f us a row, %.1f of them plan and text; from scratch and unfolded %.0f/s, %.1f ms a row; ratio %.0f (target 10000/s)\n",
           n, (double)n / folded_s, 1e6 * folded_s / (double)n, 1e6 * fronts_s / (double)n, (double)n_scratch / scratch_s, 1e3 * scratch_s / (double)n_scratch,
           scratch_s / (double)n_scratch / (folded_s / (double)n));
    return 0;
}
