/*
 * moesim validate CASES.csv: predictions against measurements, row by row.
 */
#include <string.h>

#include "reports/cli/command.h"
#include "reports/cli/validation.h"
#include "reports/out/csv.h"
#include "reports/out/text.h"
#include "sim/base/error.h"
#include "sim/base/file.h"
#include "workloads/run/run.h"

typedef struct Options {
    double max_time_error, max_memory_error; /* percent */
    char *csv;
} Options;

static void init(void *data)
{
    Options *options = data;
    options->max_time_error = options->max_memory_error = command_no_bound;
}

static json_t *predict(json_t *value, const char *name, const char *base_dir, int64_t rank, GError **error)
{
    g_autoptr(Plan) plan = plan_from_json(value, name, base_dir, error);
    if (plan == NULL) {
        return NULL;
    }
    RunOptions options = {.memory_rank = rank, .phases = TRUE};
    if (rank >= plan->cluster->n_ranks) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: measured.rank: %" G_GINT64_FORMAT " of a cluster of %" G_GINT64_FORMAT " ranks", name, rank,
                    plan->cluster->n_ranks);
        return NULL;
    }
    g_autoptr(Result) result = run_plan(plan, &options, error);
    if (result == NULL) {
        g_prefix_error(error, "%s: ", name);
        return NULL;
    }
    return result_to_json(result);
}

static gboolean proceed(size_t row, size_t n_rows)
{
    if (command_interrupted(NULL)) {
        return FALSE;
    }
    command_progress(row, n_rows, "cases");
    return TRUE;
}

/* ---- output ---- */

static gboolean print_table(Table *table, GError **error)
{
    g_autoptr(Table) owned = table;
    g_autoptr(GString) text = g_string_new(NULL);
    text_append_table(text, owned, 0);
    return command_print(error, "%s", text->str);
}

static gboolean print_validation(const Validation *validation, GError **error)
{
    size_t predicted = validation->n_rows - validation->n_failed;
    return command_print(error, "Signed errors, predicted against measured\n\n") &&
           print_table(validation_errors_table(validation), error) &&
           command_print(error, "\nOver %" G_GSIZE_FORMAT " of %" G_GSIZE_FORMAT " rows\n\n", predicted,
                         cases_n_rows(validation->cases)) &&
           print_table(validation_summary_table(validation), error);
}

static gboolean write_csv(const Validation *validation, const char *path, GError **error)
{
    g_autoptr(Table) table = validation_full_table(validation);
    g_autofree char *csv = csv_from_table(table);
    return file_write(path, csv, strlen(csv), error);
}

/* ---- verdict ---- */

static void judge(const Validation *validation, const char *path, double bound, GString *complaints)
{
    if (!command_bound_given(bound)) {
        return;
    }
    const ValidationSummary *summary = validation_summary(validation, path);
    if (summary == NULL || summary->n == 0) {
        g_string_append_printf(complaints, "; %s: nothing to put the bound on", path);
    } else if (!(summary->mean_absolute <= bound)) {
        g_string_append_printf(complaints, "; %s: mean absolute error %.3f %% is over %g %%", path,
                               summary->mean_absolute, bound);
    }
}

/* Without bounds a validation informs; with one, every row has to be predicted as well. */
static gboolean verdict(const Validation *validation, const Options *options, GError **error)
{
    if (validation->n_failed == validation->n_rows) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: no row could be predicted",
                    cases_place(validation->cases, G_MAXSIZE));
        return FALSE;
    }
    if (!command_bound_given(options->max_time_error) && !command_bound_given(options->max_memory_error)) {
        return TRUE;
    }
    g_autoptr(GString) complaints = g_string_new(NULL);
    judge(validation, "step_time_s", options->max_time_error, complaints);
    judge(validation, "peak_memory_bytes", options->max_memory_error, complaints);
    if (validation->n_failed > 0) {
        g_string_append_printf(complaints, "; %" G_GSIZE_FORMAT " rows could not be predicted", validation->n_failed);
    }
    if (complaints->len == 0) {
        return TRUE;
    }
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "%s: %s", cases_place(validation->cases, G_MAXSIZE),
                complaints->str + strlen("; "));
    return FALSE;
}

static void report_failures(const Validation *validation)
{
    for (size_t row = 0; row < validation->n_rows; row++) {
        if (validation->failures[row] != NULL) {
            g_autofree char *message = error_printable(validation->failures[row]);
            g_printerr("moesim: %s\n", message);
        }
    }
}

static gboolean run(const CommandCall *call, GError **error)
{
    const Options *options = call->options;
    if (!command_check_bound("max-time-error", options->max_time_error, error) ||
        !command_check_bound("max-memory-error", options->max_memory_error, error)) {
        return FALSE;
    }
    g_autoptr(Cases) cases = cases_load(call->words[0], error);
    if (cases == NULL) {
        return FALSE;
    }
    command_catch_interrupt();
    g_autoptr(Validation) validation = validation_run(cases, predict, proceed, error);
    command_progress(1, 1, "");
    if (validation == NULL) {
        return FALSE;
    }
    report_failures(validation);
    if (validation->n_rows > 0 && !print_validation(validation, error)) {
        return FALSE;
    }
    if (options->csv != NULL && !write_csv(validation, options->csv, error)) {
        return FALSE;
    }
    return !command_interrupted(error) && verdict(validation, options, error);
}

static const CommandOption options[] = {
    {"max-time-error", 0, G_OPTION_ARG_DOUBLE, G_STRUCT_OFFSET(Options, max_time_error),
     "Fail when the mean absolute error of step_time_s is larger", "PERCENT"},
    {"max-memory-error", 0, G_OPTION_ARG_DOUBLE, G_STRUCT_OFFSET(Options, max_memory_error),
     "Fail when the mean absolute error of peak_memory_bytes is larger", "PERCENT"},
    {"csv", 0, G_OPTION_ARG_FILENAME, G_STRUCT_OFFSET(Options, csv), "Write measured, predicted and error of every row",
     "FILE"},
    {NULL},
};

const CommandClass command_validate = {
    .usage = "CASES.csv",
    .description = "Each row of CASES.csv is a plan: columns are dotted plan paths (parallel.ep), id, source, or\n"
                   "measured. and a result path (measured.step_time_s). Errors are signed, in percent: positive\n"
                   "is predicted too much. measured.rank says whose memory was measured.",
    .min_words = 1,
    .max_words = 1,
    .words = COMMAND_WORDS_FILES,
    .options = options,
    .options_size = sizeof(Options),
    .init = init,
    .run = run,
};
