/* Validation against a predictor made up for the purpose: signed errors, means, failures, mistakes in the table. */
#include "tests/check.h"

#include "reports/cli/validation.h"
#include "reports/out/csv.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"

/* Predicts a step of ep seconds, and a peak of 100 bytes on rank 0, 200 elsewhere; refuses ep 13. */
static json_t *predict(json_t *plan, const char *name, const char *base_dir, int64_t rank, GError **error)
{
    (void)base_dir;
    json_int_t ep = json_integer_value(json_object_get(json_object_get(plan, "parallel"), "ep"));
    if (ep == 13) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: parallel.ep: 13 does not divide 8", name);
        return NULL;
    }
    return json_pack("{s:f, s:i, s:i, s:n, s:b}", "step_time_s", (double)ep, "peak_rank", (int)ep, "peak_memory_bytes", rank == 0 ? 100 : 200,
                     "mfu", "fits", 1);
}

static const char table[] =
    "id,parallel.ep,measured.step_time_s,measured.peak_memory_bytes,measured.mfu,measured.rank\n"
    "a,11,10,100,0.5,0\n"
    "b,6,8,200,,1\n"
    "c,13,1,1,,\n"
    "d,9,10,,,\n";

static void test_errors(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Cases) cases = cases_parse(table, "t.csv", &error);
    g_autoptr(Validation) validation = validation_run(cases, predict, NULL, &error);
    check_no_error(error);
    check_int(validation->n_rows, 4);
    check_int(validation->n_failed, 1);
    check_string(validation->failures[2], "t.csv:4: parallel.ep: 13 does not divide 8");
    check_close(validation_error(validation, 0, 0), 10, 1e-12);
    check_close(validation_error(validation, 1, 0), -25, 1e-12);
    assert_true(isnan(validation_error(validation, 2, 0)));
    check_close(validation_error(validation, 3, 0), -10, 1e-12);

    const ValidationSummary *time = validation_summary(validation, "step_time_s");
    check_int(time->n, 3);
    check_close(time->bias, -25.0 / 3, 1e-12);
    check_close(time->mean_absolute, 15, 1e-12);
    check_close(time->worst, -25, 1e-12);
    check_string(time->worst_id, "b");

    /* Each row's memory is that of the rank on which it was measured. */
    const ValidationSummary *memory = validation_summary(validation, "peak_memory_bytes");
    check_int(memory->n, 2);
    check_close(memory->mean_absolute, 0, 0);

    /* What was measured but has no prediction is compared with nothing. */
    const ValidationSummary *mfu = validation_summary(validation, "mfu");
    check_int(mfu->n, 0);
    assert_true(isnan(mfu->bias) && isnan(mfu->worst) && mfu->worst_id == NULL);
    assert_null(validation_summary(validation, "hfu"));
}

static void test_tables(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Cases) cases = cases_parse("id,parallel.ep,measured.step_time_s\na,11,10\nb,13,1\n", "t.csv", &error);
    g_autoptr(Validation) validation = validation_run(cases, predict, NULL, &error);
    g_autoptr(Table) full = validation_full_table(validation);
    g_autofree char *csv = csv_from_table(full);
    check_string(csv, "\"id\",\"measured.step_time_s\",\"predicted.step_time_s\",\"error_percent.step_time_s\","
                      "\"status\",\"reason\"\n"
                      "\"a\",10,11,10,\"ok\",\n"
                      "\"b\",1,,,\"invalid\",\"t.csv:3: parallel.ep: 13 does not divide 8\"\n");
    g_autoptr(Table) errors = validation_errors_table(validation);
    check_string(table_column_name(errors, 0), "step_time");
    check_int(table_n_rows(errors), 2);
    assert_false(table_has(errors, 1, 0));
    g_autoptr(Table) summary = validation_summary_table(validation);
    check_close(table_number(summary, 0, 2), 10, 1e-12);
    check_string(table_text(summary, 0, 5), "a");
}

static gboolean stop_at_two(size_t row, size_t n_rows)
{
    check_int(n_rows, 4);
    return row < 2;
}

/* Interrupted, what is done is kept. */
static void test_stop(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Cases) cases = cases_parse(table, "t.csv", &error);
    g_autoptr(Validation) validation = validation_run(cases, predict, stop_at_two, &error);
    check_int(validation->n_rows, 2);
    check_int(validation->summaries[0].n, 2);
    g_autoptr(Table) full = validation_full_table(validation);
    check_int(table_n_rows(full), 2);
}

static void test_mistakes(void **state)
{
    (void)state;
    static const struct {
        const char *csv, *message;
    } mistakes[] = {
        {"id,measured.step_time\na,1\n", "t.csv:1: measured.step_time: no result has that path; did you mean "
                                         "measured.step_time_s?"},
        {"id,measured.time\na,1\n", "measured.time: no result has that path"},
        {"id,measured.warnings\na,1\n", "measured.warnings: no result has that path"},
        {"id,measured.step_time_s\na,fast\n", "t.csv:2"},
        {"id,measured.rank\na,-1\n", "t.csv:2: measured.rank"},
        {"id,measured.step_time_s\na,1\nb,0\n", "t.csv:3: measured.step_time_s: 0 cannot have been measured; expected a number above 0"},
        {"id,measured.step_time_s\na,-5\n", "t.csv:2: measured.step_time_s: -5 cannot have been measured; expected a number above 0"},
        {"id,measured.step_time_s\na,1e-400\n", "t.csv:2: measured.step_time_s: 0 cannot"},
        {"id,measured.peak_memory_bytes\na,0\n", "t.csv:2: measured.peak_memory_bytes: 0 cannot"},
        {"id,measured.time.exposed_comm_s\na,-1e-9\n", "t.csv:2: measured.time.exposed_comm_s: -1e-09 cannot have been measured; expected a number from 0"},
        {"id,measured.mfu\na,0x10\n", "t.csv:2: measured.mfu: \"0x10\" is not a number"},
        {"id,measured.mfu\na,nan\n", "t.csv:2: measured.mfu: \"nan\" is not a number"},
        {"id,measured.mfu\na,1e999\n", "t.csv:2: measured.mfu: \"1e999\" is not a number"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(mistakes); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Cases) cases = cases_parse(mistakes[i].csv, "t.csv", &error);
        assert_null(validation_run(cases, predict, NULL, &error));
        check_error(&error, MOESIM_ERROR_INPUT, mistakes[i].message);
    }
}

static void test_zero(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Cases) cases =
        cases_parse("parallel.ep,measured.peak_rank,measured.fits\n0,0,1\n5,0,0\n", "t.csv", &error);
    g_autoptr(Validation) validation = validation_run(cases, predict, NULL, &error);
    check_no_error(error);
    check_close(validation_error(validation, 0, 0), 0, 0);
    assert_true(isnan(validation_error(validation, 1, 0)));
    check_close(validation_error(validation, 0, 1), 0, 0);
    validation_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),   cmocka_unit_test(test_tables), cmocka_unit_test(test_stop),
        cmocka_unit_test(test_mistakes), cmocka_unit_test(test_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
