/* Newton-Schulz of Muon in bf16 against measured times on one H200: five steps, single matrices and stacks. */
#include "tests/check.h"

#include "hw/timing.h"
#include "models/optim.h"
#include "sim/base/csv-read.h"
#include "tests/property/random-plan.h"
#include "workloads/run/run.h"

static double cell(const CsvTable *table, size_t row, const char *column)
{
    g_autoptr(GError) error = NULL;
    double number = 0;
    csv_table_number(table, row, (size_t)csv_table_find(table, column), &number, &error);
    check_no_error(error);
    return number;
}

/* At the clock that its own products leave; where the host takes longer to issue the calls, its measured time. */
static double orthogonal_seconds(const Device *device, const OptimPiece *piece, double host_seconds)
{
    g_autoptr(GArray) works = g_array_new(FALSE, FALSE, sizeof(Work));
    double ns = 0, burst_ns = 0, power = 0;
    optim_muon_orthogonal_cost(piece, works);
    for (guint i = 0; i < works->len; i++) {
        const Work *work = &g_array_index(works, Work, i);
        double one = (double)timing_work_ns(device, work, TIMING_BURST, NULL) * work->n_launches;
        burst_ns += one;
        power += work_law_group(work->law) == WORK_GROUP_COMPUTE ? one * timing_power_share(device, work) : 0;
    }
    for (guint i = 0; i < works->len; i++) {
        const Work *work = &g_array_index(works, Work, i);
        ns += (double)(timing_in_step_ns(device, work, power / burst_ns, NULL) + device->kernel_gap_ns) * work->n_launches;
    }
    return MAX(1e-9 * ns, host_seconds);
}

static void test_rows(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autofree char *path = check_source_path("tests/reference/h200-muon.csv");
    g_autoptr(CsvTable) table = csv_table_load(path, &error);
    check_no_error(error);
    g_autoptr(Device) device = device_load("h200-sxm", &error);
    check_no_error(error);
    double sum = 0, n = (double)csv_table_n_rows(table);
    for (size_t r = 0; r < csv_table_n_rows(table); r++) {
        const OptimPiece piece = {.numel = 1, .by_matrix = TRUE, .rows = (int64_t)cell(table, r, "rows"), .cols = (int64_t)cell(table, r, "cols"),
                                  .n_matrices = (int64_t)cell(table, r, "n_matrices"), .param = DTYPE_FP32};
        double off = orthogonal_seconds(device, &piece, cell(table, r, "host_seconds")) / cell(table, r, "seconds") - 1;
        int64_t held = optim_muon_orthogonal_bytes(&piece) + 2 * piece.n_matrices * piece.rows * piece.cols;
        double memory = (double)held / cell(table, r, "workspace_bytes") - 1;
        print_message("# %d x [%d, %d]: time %+.1f %%, memory %+.1f %%\n", (int)piece.n_matrices, (int)piece.rows, (int)piece.cols, 100 * off, 100 * memory);
        sum += fabs(off);
        assert_true(fabs(memory) <= 0.05);
    }
    print_message("# mean absolute: %.1f %%\n", 100 * sum / n);
    assert_true(sum / n <= 0.10);
}

/* Whole matrices on 512 ranks: some ranks own none in the last round, and a round waits for its costliest. */
static void test_imbalance(void **state)
{
    static const char *const ways[] = {"", " optimizer.per_head=true", " parallel.sharding=none precision.parameters=bf16"};
    double found[G_N_ELEMENTS(ways)];
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(ways); i++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *words = g_strconcat("model.config=qwen3-235b-a22b cluster.preset=h200-sxm cluster.nodes=64 cluster.gpus_per_node=8 "
                                             "parallel.ep=32 memory.recompute=full optimizer.kind=muon", ways[i], NULL);
        g_autoptr(Plan) plan = plan_of_words(words, &error);
        check_no_error(error);
        g_autoptr(Result) result = run_plan(plan, NULL, &error);
        check_no_error(error);
        found[i] = result->matrix_max_over_mean;
        print_message("#%s: %.3f\n", ways[i], found[i]);
        assert_true(found[i] >= 1 - 1e-9 && found[i] < 3);
    }
    assert_true(found[0] > 1);
    check_close(found[2], 1, 1e-9); /* everybody orthogonalises everything */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_imbalance)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
