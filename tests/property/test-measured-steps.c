/* Predictions against the measured training steps: bounds on the mean absolute error, the worst, and the bias. */
#include "tests/check.h"

#include "reports/cli/validation.h"
#include "sim/base/json-read.h"
#include "workloads/run/run.h"

typedef struct Bound {
    const char *path;
    double mean_absolute, worst, bias; /* percent */
} Bound;

/* A table of measured steps and what its errors must stay within. */
typedef struct Measured {
    const char *table;
    size_t n_rows;
    Bound bounds[5];
} Measured;

static const Measured measured[] = {
    {"h200-train-cases.csv",
     23,
     {{"step_time_s", 2.5, 6, 1.5},
      {"time.forward_s", 4, 15, 2},
      {"time.backward_s", 3, 10, 2},
      {"peak_memory_bytes", 1.5, 4, 2},
      {"static_memory_bytes", 0.5, 4, 2}}},
    /* nothing was fitted to these: two rows are bound by the host, whose speed differs from machine to machine */
    {"h200-held-out-train-cases.csv",
     25,
     {{"step_time_s", 2.5, 8, 2},
      {"time.forward_s", 4, 12, 3},
      {"time.backward_s", 3, 12, 2},
      {"peak_memory_bytes", 1.5, 4, 2},
      {"static_memory_bytes", 0.5, 4, 2}}},
    /* nor to these, full against selective recomputation above all: a quarter of them wait for a host whose speed changes between steps */
    {"h200-recompute-cases.csv",
     43,
     {{"step_time_s", 6, 25, 3},
      {"time.optimizer_s", 4, 10, 4},
      {"after_forward_memory_bytes", 0.1, 0.5, 0.1},
      {"peak_memory_bytes", 0.1, 1, 0.1},
      {"reserved_memory_bytes", 3, 8, 2}}},
    /*
     * Plain parameters; activations kept, recomputed, or moved to host memory by hooks. With everything moved the allocator runs
     * into the end of the device's memory, which makes the optimizer wait for it; that is not modelled.
     */
    {"h200-offload-cases.csv",
     7,
     {{"step_time_s", 4, 13, 4},
      {"time.forward_s", 3, 6, 3},
      {"time.backward_s", 2, 3, 1},
      {"peak_memory_bytes", 0.2, 0.5, 0.2},
      {"static_memory_bytes", 0.2, 0.5, 0.2}}},
    {"h200-held-out-offload-cases.csv",
     12,
     {{"step_time_s", 3, 6, 3},
      {"time.forward_s", 4, 12, 4},
      {"time.backward_s", 2, 4, 2},
      {"peak_memory_bytes", 0.5, 3, 0.5},
      {"static_memory_bytes", 0.2, 0.5, 0.2}}},
    /* nor to these, with expandable segments */
    {"h200-expandable-cases.csv",
     11,
     {{"step_time_s", 5, 12, 3},
      {"after_forward_memory_bytes", 0.5, 4, 2},
      {"peak_memory_bytes", 0.5, 4, 2},
      {"static_memory_bytes", 0.1, 1, 1},
      {"reserved_memory_bytes", 5, 8, 5}}},
    /* the same rows on one GPU, on another machine; what is fragmented see test_fragmentation() */
    {"h200-fragmentation.csv",
     24,
     {{"memory.phases.between_steps.allocated_bytes", 0.1, 0.2, 0.1},
      {"memory.phases.after_backward.allocated_bytes", 0.1, 0.2, 0.1},
      {"memory.phases.between_steps.reserved_bytes", 2, 8, 1}}},
    /* other people's runs, on devices known by their data sheets */
    {"published-memory.csv", 4, {{"peak_memory_bytes", 1.5, 2, 1.5}}},
    {"published-steps.csv", 37, {{"tokens_per_s_per_gpu", 20, 50, 15}}},
};

static json_t *predict(json_t *value, const char *name, const char *base_dir, int64_t rank, GError **error)
{
    RunOptions options = {.memory_rank = rank, .phases = TRUE};
    g_autoptr(Plan) plan = plan_from_json(value, name, base_dir, error);
    g_autoptr(Result) result = plan != NULL ? run_plan(plan, &options, error) : NULL;
    return result != NULL ? result_to_json(result) : NULL;
}

static gboolean is_within(const Validation *validation, const Bound *bound, size_t n_rows)
{
    const ValidationSummary *summary = validation_summary(validation, bound->path);
    check_int(summary->n, n_rows);
    if (summary->mean_absolute <= bound->mean_absolute && fabs(summary->worst) <= bound->worst && fabs(summary->bias) <= bound->bias) {
        return TRUE;
    }
    print_error("%s: mean absolute %.3f %%, worst %.3f %% (%s), bias %.3f %%\n", summary->path, summary->mean_absolute,
                summary->worst, summary->worst_id, summary->bias);
    return FALSE;
}

static void test_bounds(void **state)
{
    const Measured *table = *state;
    g_autoptr(GError) error = NULL;
    g_autofree char *name = g_build_filename("tests/reference", table->table, NULL);
    g_autofree char *path = check_source_path(name);
    g_autoptr(Cases) cases = cases_load(path, &error);
    check_no_error(error);
    check_int(cases_n_rows(cases), table->n_rows);
    g_autoptr(Validation) validation = validation_run(cases, predict, NULL, &error);
    check_no_error(error);
    check_int(validation->n_failed, 0);
    gboolean ok = TRUE;
    for (size_t i = 0; i < G_N_ELEMENTS(table->bounds) && table->bounds[i].path != NULL; i++) {
        ok = is_within(validation, &table->bounds[i], table->n_rows) && ok;
    }
    assert_true(ok);
}

/*
 * What lies free between blocks in use, phase by phase. Errors in percent of what the allocator has reserved, since where
 * little is fragmented an error in percent of that says nothing.
 */
static void test_fragmentation(void **state)
{
    (void)state;
    enum { REFERENCE = 6 }; /* the column of what is reserved */
    static const double mean_most[] = {1, 2, 1.5, 1}, most = 13;
    g_autoptr(GError) error = NULL;
    g_autofree char *path = check_source_path("tests/reference/h200-fragmentation.csv");
    g_autoptr(Cases) cases = cases_load(path, &error);
    check_no_error(error);
    g_autoptr(Validation) validation = validation_run(cases, predict, NULL, &error);
    check_no_error(error);
    size_t n_columns = cases_n_measured(cases);
    check_string(cases_measured_path(cases, REFERENCE), "memory.phases.between_steps.reserved_bytes");
    for (size_t c = 0; c < G_N_ELEMENTS(mean_most); c++) {
        double mean = 0, worst = 0;
        assert_true(g_str_has_suffix(cases_measured_path(cases, c), ".fragmented_bytes"));
        for (size_t row = 0; row < validation->n_rows; row++) {
            const double *measured_row = &validation->measured[row * n_columns], *predicted = &validation->predicted[row * n_columns];
            double error_percent = 100 * fabs(predicted[c] - measured_row[c]) / measured_row[REFERENCE];
            mean += error_percent / (double)validation->n_rows;
            worst = fmax(worst, error_percent);
        }
        if (!(mean <= mean_most[c] && worst <= most)) {
            print_error("%s: mean absolute %.2f %% of what is reserved, worst %.2f %%\n", cases_measured_path(cases, c), mean, worst);
            fail();
        }
    }
}

/*
 * What selective recomputation gains over full: rows of one table against each other, in points. MoE rows gain little on one GPU:
 * after the synchronisation in each recomputation there is less left to compute than the host needs to issue it and to fill
 * the copy-in's table; they gain more where the process keeps the table's pages.
 */
static const struct {
    const char *table, *full, *selective;
    double points;
} gains[] = {
    {"h200-offload-cases.csv", "llama-d2048-b4-full", "llama-d2048-b4-sac", 3},
    {"h200-held-out-offload-cases.csv", "llama-d2048-b4-full", "llama-d2048-b4-sac", 3},
    {"h200-held-out-offload-cases.csv", "llama-d4096-b2-full", "llama-d4096-b2-sac", 3},
    {"h200-train-cases.csv", "1gpu-moe-64e-shared-L8-s4096-b4-ep1-full-full", "1gpu-moe-64e-shared-L8-s4096-b4-ep1-sac-full", 3},
    {"h200-recompute-cases.csv", "1gpu-moe-64e-shared-L8-s4096-b4-ep1-full-full-keeps",
     "1gpu-moe-64e-shared-L8-s4096-b4-ep1-sac-full-keeps", 3},
    {"h200-recompute-cases.csv", "1gpu-llama-d8192-L4-s4096-b1-full-full", "1gpu-llama-d8192-L4-s4096-b1-sac-full", 3},
    {"h200-recompute-cases.csv", "2gpu-moe-128e-L8-s4096-b4-ep1-full-full", "2gpu-moe-128e-L8-s4096-b4-ep1-sac-full", 3},
    {"h200-recompute-cases.csv", "1gpu-llama-d4096-L8-s4096-b2-full-full", "1gpu-llama-d4096-L8-s4096-b2-sac-full", 3},
    {"h200-recompute-cases.csv", "2gpu-llama-d4096-L8-s4096-b2-full-full", "2gpu-llama-d4096-L8-s4096-b2-sac-full", 3},
};

static double measured_step(const Cases *cases, size_t row)
{
    double value = 0;
    for (size_t c = 0; c < cases_n_measured(cases); c++) {
        g_autoptr(GError) error = NULL;
        if (strcmp(cases_measured_path(cases, c), "step_time_s") == 0) {
            assert_true(cases_measured(cases, row, c, &value, &error));
        }
    }
    return value;
}

/* Predicted and measured step time of a row. */
static double step_of(const Cases *cases, const char *id, double *ret_measured)
{
    for (size_t i = 0; i < cases_n_rows(cases); i++) {
        g_autoptr(GError) error = NULL;
        if (strcmp(cases_id(cases, i), id) == 0) {
            g_autoptr(json_t) plan = cases_plan(cases, i, &error);
            g_autofree char *base = check_source_path("tests/reference");
            g_autoptr(json_t) result = plan != NULL ? predict(plan, id, base, -1, &error) : NULL;
            check_no_error(error);
            *ret_measured = measured_step(cases, i);
            return result_number_at(result, "step_time_s");
        }
    }
    print_error("no row %s\n", id);
    fail();
    return 0;
}

static void test_selective_gain(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(gains); i++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *name = g_build_filename("tests/reference", gains[i].table, NULL);
        g_autofree char *path = check_source_path(name);
        g_autoptr(Cases) cases = cases_load(path, &error);
        check_no_error(error);
        double full_s, some_s, full = step_of(cases, gains[i].full, &full_s), some = step_of(cases, gains[i].selective, &some_s);
        double predicted = 100 * (full / some - 1), measured_gain = 100 * (full_s / some_s - 1);
        if (fabs(predicted - measured_gain) > gains[i].points) {
            print_error("%s: gain %.2f %% predicted, %.2f %% measured\n", gains[i].full, predicted, measured_gain);
            fail();
        }
    }
}

/* The only measured value of a row, and what is predicted of it. */
static double one_of(const Cases *cases, size_t row, double *ret_measured)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) plan = cases_plan(cases, row, &error);
    g_autofree char *base = check_source_path("tests/reference");
    g_autoptr(json_t) result = plan != NULL ? predict(plan, cases_id(cases, row), base, -1, &error) : NULL;
    check_no_error(error);
    for (size_t c = 0; c < cases_n_measured(cases); c++) {
        assert_true(cases_measured(cases, row, c, ret_measured, &error));
        if (!isnan(*ret_measured)) {
            return result_number_at(result, cases_measured_path(cases, c));
        }
    }
    print_error("%s measures nothing\n", cases_id(cases, row));
    fail();
    return 0;
}

/* Pairs of published runs, before and after: the sign of every change, and its size within 4 points on average. */
static void test_effects(void **state)
{
    enum { N_ROWS = 8 };
    static const double mean_points = 4, worst_points = 8;
    g_autoptr(GError) error = NULL;
    g_autofree char *path = check_source_path("tests/reference/published-effects.csv");
    g_autoptr(Cases) cases = cases_load(path, &error);
    double sum = 0;
    (void)state;
    check_no_error(error);
    check_int(cases_n_rows(cases), N_ROWS);
    for (size_t i = 0; i < N_ROWS; i += 2) {
        double was, is;
        double before = one_of(cases, i, &was), after = one_of(cases, i + 1, &is);
        double predicted = 100 * (after / before - 1), published = 100 * (is / was - 1);
        assert_true(g_str_has_suffix(cases_id(cases, i), "-before") && g_str_has_suffix(cases_id(cases, i + 1), "-after"));
        print_message("# %s: %.1f %% predicted, %.1f %% published\n", cases_id(cases, i + 1), predicted, published);
        assert_true(predicted * published > 0);
        assert_true(fabs(predicted - published) <= worst_points);
        sum += fabs(predicted - published);
    }
    assert_true(2 * sum / N_ROWS <= mean_points);
}

/*
 * Exchanges' share of a step of DeepSeek-V3 with EP 64 (arXiv 2603.07685): 40 to 60 % on H100, 20 % on GB200 NVL72. Its layout and batch are not
 * said; here each rank has all layers, which makes hardly a difference to a share, products are fp8 as in that work, rows go straight.
 */
static const struct {
    const char *cluster;
    double low, high; /* percent */
} shares[] = {
    {"{\"preset\": \"h100-sxm\", \"nodes\": 32, \"gpus_per_node\": 8}", 40, 60},
    {"{\"preset\": \"gb200\", \"nodes\": 64, \"gpus_per_node\": 4}", 16, 24},
};

static void test_exchange_share(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(shares); i++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *text = g_strdup_printf(
            "{\"model\": \"deepseek-v3\", \"cluster\": %s, \"parallel\": {\"ep\": 64, \"sharding\": \"zero1\"}, \"precision\": "
            "{\"parameters\": \"bf16\", \"gemm\": \"fp8\"}, \"optimizer\": {\"master_weights\": true}, \"workload\": {\"seq_len\": 4096, "
            "\"global_batch\": 4096}}", shares[i].cluster);
        g_autoptr(json_t) plan = json_loads(text, 0, NULL);
        g_autoptr(json_t) result = predict(plan, "plan", NULL, -1, &error);
        check_no_error(error);
        double exchanges_s = 0;
        size_t at;
        json_t *entry;
        json_array_foreach(json_object_get(result, "collectives"), at, entry) {
            gboolean is_exchange = strcmp(json_string_value(json_object_get(entry, "name")), "all_to_all (EP)") == 0;
            exchanges_s += is_exchange ? json_number_value(json_object_get(entry, "time_s")) : 0;
        }
        double share = 100 * exchanges_s / result_number_at(result, "step_time_s");
        print_message("# exchanges take %.1f %% of the step\n", share);
        assert_true(share >= shares[i].low && share <= shares[i].high);
    }
}

int main(void)
{
    struct CMUnitTest tests[G_N_ELEMENTS(measured) + 4] = {0};
    for (size_t i = 0; i < G_N_ELEMENTS(measured); i++) {
        tests[i] = (struct CMUnitTest){
            .name = measured[i].table, .test_func = test_bounds, .initial_state = (void *)(uintptr_t)&measured[i]};
    }
    tests[G_N_ELEMENTS(measured)] = (struct CMUnitTest){.name = "gain of selective recomputation", .test_func = test_selective_gain};
    tests[G_N_ELEMENTS(measured) + 1] = (struct CMUnitTest){.name = "fragmentation by phase", .test_func = test_fragmentation};
    tests[G_N_ELEMENTS(measured) + 2] = (struct CMUnitTest){.name = "published effects", .test_func = test_effects};
    tests[G_N_ELEMENTS(measured) + 3] = (struct CMUnitTest){.name = "exchanges' share", .test_func = test_exchange_share};
    return _cmocka_run_group_tests("measured-steps", tests, G_N_ELEMENTS(tests), NULL, NULL);
}
