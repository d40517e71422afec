/*
 * moesim calibrate: measured tables to a hardware descriptor, with what the fit is worth.
 */
#include <gsl/gsl_errno.h>
#include <jansson.h>
#include <string.h>

#include "reports/cli/command.h"
#include "sim/base/error.h"
#include "sim/base/file.h"
#include "workloads/calibrate.h"

typedef struct CalibrateOptions {
    char *output;
    char *base;
    gboolean json;
    gboolean rows;
} CalibrateOptions;

static const CommandOption options[] = {
    {"output", 'o', G_OPTION_ARG_FILENAME, offsetof(CalibrateOptions, output), "Write the descriptor there", "HW.json"},
    {"base", 0, G_OPTION_ARG_STRING, offsetof(CalibrateOptions, base),
     "Preset or descriptor that says everything but the laws (h200-sxm)", "NAME"},
    {"rows", 0, G_OPTION_ARG_NONE, offsetof(CalibrateOptions, rows), "Print every row with its error", NULL},
    {"json", 0, G_OPTION_ARG_NONE, offsetof(CalibrateOptions, json), "Print the fitted laws as JSON", NULL},
    {0},
};

static gboolean show_progress(size_t done, size_t total, void *data)
{
    (void)data;
    command_progress(done, total, "laws");
    return !command_interrupted(NULL);
}

static gboolean print_rows(const Calibration *calibration, LawKind law, GError **error)
{
    const GArray *samples = calibration->samples[law];
    for (guint i = 0; i < samples->len; i++) {
        const FitSample *sample = &g_array_index(samples, FitSample, i);
        double predicted = fit_predict(calibration->device, calibration->device->laws, law, sample);
        if (!command_print(error, "    %+6.1f %%  %10.1f us  %s\n", 100.0 * (predicted / sample->seconds - 1.0),
                           sample->seconds * 1e6, sample->label)) {
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean print_table(const Calibration *calibration, gboolean rows, GError **error)
{
    if (!command_print(
            error,
            "Errors in %%, predicted against measured; large: over rows above 20 us, transfers of 1 MiB and more;\n"
            "left out: of each shape, by a fit without it\n\n"
            "%-26s %5s %9s %7s %9s %7s %7s  %s\n",
            "law", "rows", "mean abs", "large", "left out", "bias", "worst", "worst row")) {
        return FALSE;
    }
    for (int i = 0; i < N_LAWS; i++) {
        const LawFit *fit = &calibration->device->laws->fits[i];
        if (calibration->samples[i]->len == 0) {
            continue;
        }
        double large =
            fit_large_error(calibration->device, calibration->device->laws, (LawKind)i, calibration->samples[i]);
        if (!command_print(error, "%-26s %5" G_GINT64_FORMAT " %9.1f %7.1f %9.1f %+7.1f %+7.1f  %s\n",
                           law_name((LawKind)i), fit->n_rows, 100.0 * fit->mean_abs_error, 100.0 * large,
                           100.0 * fit->left_out_error, 100.0 * fit->bias, 100.0 * fit->worst_error, fit->worst_row) ||
            (rows && !print_rows(calibration, (LawKind)i, error))) {
            return FALSE;
        }
    }
    const GPtrArray *unused = calibration->unused;
    return unused->len == 0 ||
           command_print(error, "\n%u rows tell of no law (such as \"%s\")\n", unused->len, (char *)unused->pdata[0]);
}

static gboolean write_descriptor(const json_t *descriptor, const char *path, GError **error)
{
    g_autofree char *text = json_dumps(descriptor, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    g_autofree char *line = g_strconcat(text, "\n", NULL);
    return file_write(path, line, strlen(line), error);
}

static gboolean print_json(const Calibration *calibration, GError **error)
{
    g_autofree char *text =
        json_dumps(json_object_get(calibration->descriptor, "laws"), JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    return command_print(error, "%s\n", text);
}

static gboolean run(const CommandCall *call, GError **error)
{
    const CalibrateOptions *chosen = call->options;
    command_catch_interrupt();
    gsl_error_handler_t *handler = gsl_set_error_handler_off();
    g_autoptr(Calibration) calibration = calibrate(
        (const char *const *)call->words, chosen->base != NULL ? chosen->base : "h200-sxm", show_progress, NULL, error);
    gsl_set_error_handler(handler);
    if (calibration == NULL) {
        return FALSE;
    }
    if (chosen->output != NULL && !write_descriptor(calibration->descriptor, chosen->output, error)) {
        return FALSE;
    }
    return chosen->json ? print_json(calibration, error) : print_table(calibration, chosen->rows, error);
}

extern const CommandClass command_calibrate;
const CommandClass command_calibrate = {
    .usage = "CSV... -o HW.json",
    .description =
        "Fits the timing laws to tables of measured operators and transfers. A table's family is its file name\n"
        "after \"op_\" (op_gemm.csv, op_attention.csv ...); collectives*.csv hold transfers. The descriptor written\n"
        "holds the base's values, the fitted laws, their errors and the measured range.\n"
        "  moesim calibrate hw/calibration/h200/op_*.csv hw/calibration/h200/collectives_2gpu.csv -o h200.json",
    .min_words = 1,
    .max_words = -1,
    .words = COMMAND_WORDS_FILES,
    .options = options,
    .options_size = sizeof(CalibrateOptions),
    .run = run,
};
