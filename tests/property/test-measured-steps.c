/* Predictions against the measured training steps: bounds on the mean absolute error, the worst, and the bias. */
#include "tests/check.h"

#include "reports/cli/validation.h"
#include "sim/base/json-read.h"
#include "workloads/run/run.h"

static const struct {
    const char *path;
    double mean_absolute, worst, bias; /* percent */
} bounds[] = {
    {"step_time_s", 5, 12, 2},
    {"time.forward_s", 7, 20, 2},
    {"time.backward_s", 7, 20, 2},
    {"peak_memory_bytes", 1.5, 4, 2},
    {"static_memory_bytes", 0.5, 4, 2},
};

static json_t *predict(json_t *value, const char *name, const char *base_dir, int64_t rank, GError **error)
{
    RunOptions options = {.memory_rank = rank};
    g_autoptr(Plan) plan = plan_from_json(value, name, base_dir, error);
    g_autoptr(Result) result = plan != NULL ? run_plan(plan, &options, error) : NULL;
    return result != NULL ? result_to_json(result) : NULL;
}

static void test_bounds(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autofree char *path = check_source_path("tests/reference/h200-train-cases.csv");
    g_autoptr(Cases) cases = cases_load(path, &error);
    check_no_error(error);
    check_int(cases_n_rows(cases), 23);
    g_autoptr(Validation) validation = validation_run(cases, predict, NULL, &error);
    check_no_error(error);
    check_int(validation->n_failed, 0);
    gboolean ok = TRUE;
    for (size_t i = 0; i < G_N_ELEMENTS(bounds); i++) {
        const ValidationSummary *summary = validation_summary(validation, bounds[i].path);
        check_int(summary->n, 23);
        if (!(summary->mean_absolute <= bounds[i].mean_absolute && fabs(summary->worst) <= bounds[i].worst &&
              fabs(summary->bias) <= bounds[i].bias)) {
            print_error("%s: mean absolute %.3f %%, worst %.3f %% (%s), bias %.3f %%\n", summary->path,
                        summary->mean_absolute, summary->worst, summary->worst_id, summary->bias);
            ok = FALSE;
        }
    }
    assert_true(ok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
