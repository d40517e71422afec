/* Laws: held-out measurements, physical bounds, monotonicity, and what a time rests on. */
#include "tests/check.h"

#include <stdlib.h>

#include "hw/law.h"
#include "hw/timing.h"
#include "sim/base/csv-read.h"

static Device *h200(void)
{
    g_autoptr(GError) error = NULL;
    Device *device = device_load("h200-sxm", &error);
    check_no_error(error);
    return device;
}

static Work gemm(WorkLaw law, int64_t m, int64_t n, int64_t k)
{
    return (Work){.law = law,
                  .dtype = DTYPE_BF16,
                  .flops = 2.0 * (double)m * (double)n * (double)k,
                  .read_bytes = 2 * (m * k + n * k),
                  .write_bytes = 2 * m * n,
                  .m = m,
                  .n = n,
                  .k = k,
                  .n_launches = 1};
}

static CsvTable *reference(const char *name)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = g_build_filename(g_getenv("MOESIM_SOURCE_ROOT"), "tests", "reference", name, NULL);
    CsvTable *table = csv_table_load(path, &error);
    check_no_error(error);
    return table;
}

static int64_t integer(const CsvTable *table, size_t row, const char *column)
{
    return g_ascii_strtoll(csv_table_cell(table, row, (size_t)csv_table_find(table, column)), NULL, 10);
}

static double seconds_of(const CsvTable *table, size_t row)
{
    return g_ascii_strtod(csv_table_cell(table, row, (size_t)csv_table_find(table, "seconds")), NULL);
}

/* Odd shapes that no fit has seen, taken in short bursts. */
static void test_held_out_gemm(void **state)
{
    (void)state;
    g_autoptr(Device) device = h200();
    g_autoptr(CsvTable) table = reference("h200-gemm-odd-shapes.csv");
    double sum = 0.0, sum_abs = 0.0;
    int n = 0;
    for (size_t i = 0; i < csv_table_n_rows(table); i++) {
        const char *name = csv_table_cell(table, i, 0);
        WorkLaw law = name[1] == 't' ? WORK_GEMM_NT : name[0] == 'n' ? WORK_GEMM_NN : WORK_GEMM_TN;
        Work work = gemm(law, integer(table, i, "m"), integer(table, i, "n"), integer(table, i, "k"));
        double want = seconds_of(table, i);
        if (want > 25e-6) { /* below, the host's time is in the measurement */
            double error = ((double)timing_work_at_clock_ns(device, &work, 0.97, NULL) * 1e-9 + 2.4e-6) / want - 1.0;
            sum += error;
            sum_abs += fabs(error);
            n++;
        }
    }
    assert_true(n > 100);
    check_close(sum_abs / n, 0.0, 0.07);
    check_close(sum / n, 0.0, 0.03);
}

static void test_held_out_grouped(void **state)
{
    (void)state;
    g_autoptr(Device) device = h200();
    g_autoptr(CsvTable) table = reference("h200-grouped-gemm-more.csv");
    double sum_abs = 0.0;
    for (size_t i = 0; i < csv_table_n_rows(table); i++) {
        const char *name = csv_table_cell(table, i, 0);
        int64_t n = integer(table, i, "n"), k = integer(table, i, "k"), rows[512], total = 0;
        g_auto(GStrv) counts = g_strsplit(csv_table_cell(table, i, 3), " ", -1);
        int64_t groups = g_strv_length(counts);
        for (int64_t g = 0; g < groups; g++) {
            rows[g] = g_ascii_strtoll(counts[g], NULL, 10);
            total += rows[g];
        }
        gboolean wgrad = name[0] == 'w', dgrad = name[0] == 'd';
        Work work = gemm(wgrad ? WORK_GROUPED_GEMM_WGRAD : WORK_GROUPED_GEMM, total, dgrad ? k : n, dgrad ? n : k);
        work.read_bytes = 2 * (wgrad ? total * (n + k) : total * work.k + groups * n * k);
        work.write_bytes = 2 * (wgrad ? groups * n * k : total * work.n);
        work.m = wgrad ? k : total;
        work.k = wgrad ? total : work.k;
        work.n_groups = groups;
        work.group_rows = rows;
        double got = (double)timing_work_at_clock_ns(device, &work, 0.93, NULL) * 1e-9 + 2.4e-6;
        sum_abs += fabs(got / seconds_of(table, i) - 1.0);
    }
    check_close(sum_abs / (double)csv_table_n_rows(table), 0.0, 0.08);
}

/* The clock: 1 alone, sinking with the share, 665 to 690 TFLOP/s for endless square products. */
static void test_clock(void **state)
{
    (void)state;
    g_autoptr(Device) device = h200();
    check_close(timing_clock_frac(device, 0.0), 1.0, 1e-12);
    double last = 1.0;
    for (double share = 0.05; share <= 1.0; share += 0.05) {
        double clock = timing_clock_frac(device, share);
        assert_true(clock <= last && clock > 0.6);
        last = clock;
    }
    Work work = gemm(WORK_GEMM_NT, 8192, 8192, 8192);
    check_close(work.flops / (double)timing_work_ns(device, &work, TIMING_SUSTAINED, NULL) * 1e-3, 675.0, 0.05);
    assert_true(timing_work_ns(device, &work, TIMING_BURST, NULL) < timing_work_ns(device, &work, TIMING_STEP, NULL));
    assert_true(timing_work_ns(device, &work, TIMING_STEP, NULL) <
                timing_work_ns(device, &work, TIMING_SUSTAINED, NULL));
    check_close(timing_power_share(device, &work), 0.98, 0.05);
    Work copy = {.law = WORK_COPY, .read_bytes = 1 << 28, .write_bytes = 1 << 28, .n_launches = 1};
    check_close(timing_power_share(device, &copy), 0.0, 1e-9);
}

/* Waves: 132 tiles take one wave, 133 two; half a wave more work at the same number of waves is free. */
static void test_waves(void **state)
{
    (void)state;
    g_autoptr(Device) device = h200();
    Work full = gemm(WORK_GEMM_NT, 128 * 132, 256, 8192), over = gemm(WORK_GEMM_NT, 320 * 140, 256, 8192);
    SimTime one = timing_work_ns(device, &full, TIMING_BURST, NULL);
    SimTime two = timing_work_ns(device, &over, TIMING_BURST, NULL);
    assert_true(two > one);
    for (int64_t m = 256; m < 32768; m += 256) {
        Work small = gemm(WORK_GEMM_NN, m, 4096, 4096), large = gemm(WORK_GEMM_NN, m + 256, 4096, 4096);
        assert_true(timing_work_ns(device, &large, TIMING_BURST, NULL) >=
                    timing_work_ns(device, &small, TIMING_BURST, NULL) * 97 / 100);
    }
}

/* A skewed split never beats an even one of whole tiles; empty groups cost little. */
static void test_groups(void **state)
{
    (void)state;
    g_autoptr(Device) device = h200();
    int64_t even[64], skewed[64], one[64] = {0};
    for (int i = 0; i < 64; i++) {
        even[i] = 1024;
        skewed[i] = 1024 + (i - 32) * 31;
    }
    one[5] = 65536;
    const int64_t *splits[] = {even, skewed, one};
    SimTime ns[3];
    for (int i = 0; i < 3; i++) {
        Work work = gemm(WORK_GROUPED_GEMM, 65536, 1408, 2048);
        work.read_bytes = 2 * (65536 * 2048 + 64 * 1408 * 2048);
        work.n_groups = 64;
        work.group_rows = splits[i];
        ns[i] = timing_work_ns(device, &work, TIMING_BURST, NULL);
    }
    assert_true(ns[1] >= ns[0]);
    assert_true(ns[2] <= ns[0]);
}

static void test_evidence(void **state)
{
    (void)state;
    g_autoptr(Device) device = h200();
    static const struct {
        WorkLaw law;
        int64_t bytes;
        Evidence want;
    } cases[] = {
        {WORK_COPY, 1 << 24, EVIDENCE_MEASURED},
        {WORK_COPY, 1LL << 40, EVIDENCE_FITTED},
        {WORK_SCAN_FORWARD, 1 << 24, EVIDENCE_ASSUMED},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        Work work = {.law = cases[i].law, .read_bytes = cases[i].bytes, .write_bytes = cases[i].bytes, .n_launches = 1};
        Evidence evidence = EVIDENCE_MEASURED;
        assert_true(timing_work_ns(device, &work, TIMING_STEP, &evidence) > 0);
        check_string(evidence_name(evidence), evidence_name(cases[i].want));
    }
}

/* No kernel beats the datasheet's memory bandwidth, or the tensor peak by more than the burst clock allows. */
static void test_bounds(void **state)
{
    (void)state;
    g_autoptr(Device) device = h200();
    for (int law = 0; law < N_WORK_LAWS; law++) {
        if (work_law_group((WorkLaw)law) != WORK_GROUP_STREAM || law == WORK_SORT || law == WORK_TOPK ||
            law == WORK_SCATTER_ADD) {
            continue;
        }
        for (int64_t bytes = 1; bytes < 1LL << 36; bytes *= 7) {
            Work work = {
                .law = (WorkLaw)law, .read_bytes = bytes, .write_bytes = bytes, .m = 1, .n = 1, .n_launches = 1};
            assert_true((double)timing_work_ns(device, &work, TIMING_BURST, NULL) >=
                        2.0 * (double)bytes / device->hbm_bytes_per_s * 1e9);
        }
    }
    for (int64_t size = 16; size <= 65536; size *= 2) {
        Work work = gemm(WORK_GEMM_NT, size, size, size);
        assert_true(work.flops / (double)timing_work_ns(device, &work, TIMING_BURST, NULL) * 1e9 < 1.08 * 989e12);
    }
    assert_true(timing_supports(device, DTYPE_FP8));
    assert_false(timing_supports(device, DTYPE_FP4));
    check_close((double)timing_host_copy_ns(device, 1LL << 31, NULL), 38.75e6, 0.01);
}

int main(void)
{
    const struct CMUnitTest group[] = {
        cmocka_unit_test(test_held_out_gemm), cmocka_unit_test(test_held_out_grouped), cmocka_unit_test(test_clock),
        cmocka_unit_test(test_waves),         cmocka_unit_test(test_groups),           cmocka_unit_test(test_evidence),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(group, NULL, NULL);
}
