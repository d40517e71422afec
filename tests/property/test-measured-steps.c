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
     {{"step_time_s", 5, 12, 2},
      {"time.forward_s", 7, 20, 2},
      {"time.backward_s", 7, 20, 2},
      {"peak_memory_bytes", 1.5, 4, 2},
      {"static_memory_bytes", 0.5, 4, 2}}},
    /* nothing was fitted to these: two rows are bound by the host, whose speed differs from machine to machine */
    {"h200-held-out-train-cases.csv",
     25,
     {{"step_time_s", 5, 15, 4},
      {"time.forward_s", 7, 35, 4}, /* of a step that the host bounds, the split between forward and backward is the host's */
      {"time.backward_s", 7, 20, 4},
      {"peak_memory_bytes", 1.5, 4, 2},
      {"static_memory_bytes", 0.5, 4, 2}}},
};

static json_t *predict(json_t *value, const char *name, const char *base_dir, int64_t rank, GError **error)
{
    RunOptions options = {.memory_rank = rank};
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
    for (size_t i = 0; i < G_N_ELEMENTS(table->bounds); i++) {
        ok = is_within(validation, &table->bounds[i], table->n_rows) && ok;
    }
    assert_true(ok);
}

int main(void)
{
    struct CMUnitTest tests[G_N_ELEMENTS(measured)] = {0};
    for (size_t i = 0; i < G_N_ELEMENTS(measured); i++) {
        tests[i] = (struct CMUnitTest){
            .name = measured[i].table, .test_func = test_bounds, .initial_state = (void *)(uintptr_t)&measured[i]};
    }
    return _cmocka_run_group_tests("measured-steps", tests, G_N_ELEMENTS(measured), NULL, NULL);
}
