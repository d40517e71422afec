#include "reports/cli/validation.h"

#include <math.h>
#include <string.h>

#include "sim/base/error.h"
#include "sim/base/json-read.h"
#include "workloads/run/result.h"

static size_t at(const Validation *validation, size_t row, size_t column)
{
    return row * cases_n_measured(validation->cases) + column;
}

static Validation *validation_new(const Cases *cases)
{
    size_t n_rows = cases_n_rows(cases), n_columns = cases_n_measured(cases);
    Validation *validation = g_new0(Validation, 1);
    validation->cases = cases;
    validation->measured = g_new(double, n_rows *n_columns + 1);
    validation->predicted = g_new(double, n_rows *n_columns + 1);
    for (size_t i = 0; i < n_rows * n_columns; i++) {
        validation->measured[i] = validation->predicted[i] = (double)NAN;
    }
    validation->failures = g_new0(char *, n_rows + 1);
    validation->summaries = g_new0(ValidationSummary, n_columns + 1);
    return validation;
}

void validation_free(Validation *validation)
{
    if (validation == NULL) {
        return;
    }
    for (size_t row = 0; row < cases_n_rows(validation->cases); row++) {
        g_free(validation->failures[row]);
    }
    g_free(validation->failures);
    g_free(validation->measured);
    g_free(validation->predicted);
    g_free(validation->summaries);
    g_free(validation);
}

/* ---- the table's own mistakes ---- */

/* Adds the dotted paths of all numbers below an object. */
static void collect_paths(json_t *object, const char *prefix, GPtrArray *paths)
{
    const char *key;
    json_t *value;
    json_object_foreach (object, key, value) {
        g_autofree char *path = prefix[0] != '\0' ? g_strdup_printf("%s.%s", prefix, key) : g_strdup(key);
        if (json_is_object(value)) {
            collect_paths(value, path, paths);
        } else if (!json_is_array(value) && !json_is_string(value)) {
            g_ptr_array_add(paths, g_steal_pointer(&path));
        }
    }
}

static gboolean check_paths(const Cases *cases, GError **error)
{
    g_autoptr(Result) result = result_new();
    result->phases = g_new0(ResultPhases, 1); /* predicted here, too */
    g_autoptr(json_t) object = result_to_json(result);
    g_autoptr(GPtrArray) paths = g_ptr_array_new_with_free_func(g_free);
    collect_paths(object, "", paths);
    for (size_t column = 0; column < cases_n_measured(cases); column++) {
        const char *path = cases_measured_path(cases, column);
        if (g_str_has_prefix(path, "time.by_operator.") ||
            g_ptr_array_find_with_equal_func(paths, path, g_str_equal, NULL)) {
            continue;
        }
        const char *nearest = error_nearest_name(path, (const char *const *)paths->pdata, paths->len);
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s:1: measured.%s: no result has that path%s%s%s",
                    cases_place(cases, G_MAXSIZE), path, nearest != NULL ? "; did you mean measured." : "",
                    nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
        return FALSE;
    }
    return TRUE;
}

/* Numbers of a result that are never 0: as measured values, 0 says that nothing was measured. */
static gboolean is_positive(const char *path)
{
    static const char *const paths[] = {
        "ranks",           "step_time_s",           "tokens_per_s",           "tokens_per_s_per_gpu",  "useful_tokens_per_s_per_gpu",
        "tflops_per_gpu",  "model_flops_per_token", "mfu",                    "hfu",                   "time.forward_s",
        "time.backward_s", "peak_memory_bytes",     "reserved_memory_bytes",  "static_memory_bytes",   "after_forward_memory_bytes",
        "memory.capacity_bytes", "memory.mean_rank_peak_bytes", "parameters.total", "parameters.active", "parameters.per_rank",
        "moe.expert_load_max_over_mean", "moe.rank_load_max_over_mean",
    };
    for (size_t i = 0; i < G_N_ELEMENTS(paths); i++) {
        if (strcmp(path, paths[i]) == 0) {
            return TRUE;
        }
    }
    return FALSE;
}

static gboolean check_measured(const Cases *cases, size_t row, size_t column, double value, GError **error)
{
    const char *path = cases_measured_path(cases, column);
    if (!(value < 0) && (value > 0 || isnan(value) || !is_positive(path))) {
        return TRUE;
    }
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: measured.%s: %g cannot have been measured; expected a number %s 0, or an empty cell "
                "if it was not measured", cases_place(cases, row), path, value, is_positive(path) ? "above" : "from");
    return FALSE;
}

static gboolean read_measured(Validation *validation, GError **error)
{
    const Cases *cases = validation->cases;
    for (size_t row = 0; row < cases_n_rows(cases); row++) {
        int64_t rank;
        if (!cases_measured_rank(cases, row, &rank, error)) {
            return FALSE;
        }
        for (size_t column = 0; column < cases_n_measured(cases); column++) {
            double *value = &validation->measured[at(validation, row, column)];
            if (!cases_measured(cases, row, column, value, error) || !check_measured(cases, row, column, *value, error)) {
                return FALSE;
            }
        }
    }
    return TRUE;
}

/* ---- rows ---- */

static json_t *predict_row(const Cases *cases, size_t row, ValidationPredict predict, GError **error)
{
    int64_t rank = -1;
    g_autoptr(json_t) plan = cases_plan(cases, row, error);
    if (plan == NULL || !cases_measured_rank(cases, row, &rank, error)) {
        return NULL;
    }
    return predict(plan, cases_place(cases, row), cases_base_dir(cases), rank, error);
}

static void run_row(Validation *validation, size_t row, ValidationPredict predict)
{
    const Cases *cases = validation->cases;
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) object = predict_row(cases, row, predict, &error);
    validation->n_rows++;
    if (object == NULL) {
        validation->n_failed++;
        validation->failures[row] = g_strdup(error->message);
        return;
    }
    for (size_t column = 0; column < cases_n_measured(cases); column++) {
        validation->predicted[at(validation, row, column)] =
            result_number_at(object, cases_measured_path(cases, column));
    }
}

static void summarise(Validation *validation, size_t column)
{
    ValidationSummary *summary = &validation->summaries[column];
    double sum = 0, sum_absolute = 0;
    *summary = (ValidationSummary){.path = cases_measured_path(validation->cases, column), .worst = 0};
    for (size_t row = 0; row < validation->n_rows; row++) {
        double percent = validation_error(validation, row, column);
        if (!isfinite(percent)) {
            continue;
        }
        summary->n++;
        sum += percent;
        sum_absolute += fabs(percent);
        if (summary->worst_id == NULL || fabs(percent) > fabs(summary->worst)) {
            summary->worst = percent;
            summary->worst_id = cases_id(validation->cases, row);
        }
    }
    double n = summary->n > 0 ? (double)summary->n : (double)NAN;
    summary->bias = sum / n;
    summary->mean_absolute = sum_absolute / n;
    summary->worst = summary->n > 0 ? summary->worst : (double)NAN;
}

Validation *validation_run(const Cases *cases, ValidationPredict predict, ValidationProceed proceed, GError **error)
{
    g_autoptr(Validation) validation = validation_new(cases);
    if (!check_paths(cases, error) || !read_measured(validation, error)) {
        return NULL;
    }
    for (size_t row = 0; row < cases_n_rows(cases); row++) {
        if (proceed != NULL && !proceed(row, cases_n_rows(cases))) {
            break;
        }
        run_row(validation, row, predict);
    }
    for (size_t column = 0; column < cases_n_measured(cases); column++) {
        summarise(validation, column);
    }
    return g_steal_pointer(&validation);
}

double validation_error(const Validation *validation, size_t row, size_t column)
{
    double measured = validation->measured[at(validation, row, column)];
    double predicted = validation->predicted[at(validation, row, column)];
    if (!isfinite(measured) || !isfinite(predicted)) {
        return (double)NAN;
    }
    if (!(measured > 0 || measured < 0)) {
        return predicted > 0 || predicted < 0 ? (double)NAN : 0;
    }
    return 100 * (predicted - measured) / fabs(measured);
}

const ValidationSummary *validation_summary(const Validation *validation, const char *path)
{
    for (size_t column = 0; column < cases_n_measured(validation->cases); column++) {
        if (strcmp(validation->summaries[column].path, path) == 0) {
            return &validation->summaries[column];
        }
    }
    return NULL;
}

/* ---- tables ---- */

/* A path without the parts that only sort it: "time.forward_s" to "forward", "peak_memory_bytes" to "peak". */
static char *short_name(const char *path)
{
    const char *dot = strrchr(path, '.');
    GString *name = g_string_new(dot != NULL ? dot + 1 : path);
    static const char *const endings[] = {"_s", "_bytes", "_memory"};
    for (size_t i = 0; i < G_N_ELEMENTS(endings); i++) {
        if (g_str_has_suffix(name->str, endings[i])) {
            g_string_truncate(name, name->len - strlen(endings[i]));
        }
    }
    return g_string_free(name, FALSE);
}

Table *validation_errors_table(const Validation *validation)
{
    Table *table = table_new();
    size_t n_columns = cases_n_measured(validation->cases);
    for (size_t column = 0; column < n_columns; column++) {
        g_autofree char *name = short_name(cases_measured_path(validation->cases, column));
        table_add_column(table, name, TABLE_NUMBER, TABLE_PERCENT);
    }
    size_t id = table_add_column(table, "id", TABLE_TEXT, TABLE_PLAIN);
    for (size_t row = 0; row < validation->n_rows; row++) {
        table_add_row(table);
        for (size_t column = 0; column < n_columns; column++) {
            table_put_number(table, column, validation_error(validation, row, column));
        }
        table_put_text(table, id, cases_id(validation->cases, row));
    }
    return table;
}

Table *validation_summary_table(const Validation *validation)
{
    Table *table = table_new();
    size_t path = table_add_column(table, "measured", TABLE_TEXT, TABLE_PLAIN);
    size_t n = table_add_column(table, "rows", TABLE_INTEGER, TABLE_PLAIN);
    size_t bias = table_add_column(table, "bias", TABLE_NUMBER, TABLE_PERCENT);
    size_t mean = table_add_column(table, "mean abs", TABLE_NUMBER, TABLE_PERCENT);
    size_t worst = table_add_column(table, "worst", TABLE_NUMBER, TABLE_PERCENT);
    size_t worst_id = table_add_column(table, "worst row", TABLE_TEXT, TABLE_PLAIN);
    for (size_t column = 0; column < cases_n_measured(validation->cases); column++) {
        const ValidationSummary *summary = &validation->summaries[column];
        table_add_row(table);
        table_put_text(table, path, summary->path);
        table_put_integer(table, n, (int64_t)summary->n);
        table_put_number(table, bias, summary->bias);
        table_put_number(table, mean, summary->mean_absolute);
        table_put_number(table, worst, summary->worst);
        if (summary->worst_id != NULL) {
            table_put_text(table, worst_id, summary->worst_id);
        }
    }
    return table;
}

Table *validation_full_table(const Validation *validation)
{
    Table *table = table_new();
    const Cases *cases = validation->cases;
    size_t n_columns = cases_n_measured(cases);
    size_t id = table_add_column(table, "id", TABLE_TEXT, TABLE_PLAIN);
    for (size_t column = 0; column < n_columns; column++) {
        static const char *const kinds[] = {"measured", "predicted", "error_percent"};
        for (size_t kind = 0; kind < G_N_ELEMENTS(kinds); kind++) {
            g_autofree char *name = g_strdup_printf("%s.%s", kinds[kind], cases_measured_path(cases, column));
            table_add_column(table, name, TABLE_NUMBER, TABLE_PLAIN);
        }
    }
    size_t status = table_add_column(table, "status", TABLE_TEXT, TABLE_PLAIN);
    size_t reason = table_add_column(table, "reason", TABLE_TEXT, TABLE_PLAIN);
    for (size_t row = 0; row < validation->n_rows; row++) {
        table_add_row(table);
        table_put_text(table, id, cases_id(cases, row));
        for (size_t column = 0; column < n_columns; column++) {
            size_t first = id + 1 + 3 * column;
            table_put_number(table, first, validation->measured[at(validation, row, column)]);
            table_put_number(table, first + 1, validation->predicted[at(validation, row, column)]);
            table_put_number(table, first + 2, validation_error(validation, row, column));
        }
        table_put_text(table, status, validation->failures[row] != NULL ? "invalid" : "ok");
        if (validation->failures[row] != NULL) {
            table_put_text(table, reason, validation->failures[row]);
        }
    }
    return table;
}
