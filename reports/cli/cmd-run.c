/*
 * moesim run PLAN.json: one training step, predicted.
 */
#include "reports/cli/command.h"
#include "reports/cli/run-files.h"
#include "reports/cli/summary.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"
#include "workloads/run/advice.h"
#include "workloads/run/chunk-bound.h"
#include "workloads/run/trials.h"
#include "workloads/run/run.h"

typedef struct Options {
    gboolean json, require_fit;
    char *output;
} Options;

/* The result object as text, the same bytes for the same plan. */
static char *result_text(const Result *result)
{
    g_autoptr(json_t) object = result_to_json(result);
    g_autofree char *text = json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    return g_strconcat(text, "\n", NULL);
}

/* Looks for changes that would make the plan fit. */
static void advise(Result *result, const char *path)
{
    g_autoptr(JsonDoc) doc = json_doc_load(path, FALSE, NULL);
    g_autofree char *base_dir = g_path_get_dirname(path);
    if (doc != NULL) {
        advice_find(result, json_doc_root(doc), path, base_dir);
    }
}

static gboolean run(const CommandCall *call, GError **error)
{
    const Options *options = call->options;
    g_autoptr(Plan) plan = plan_load(call->words[0], error);
    if (plan == NULL) {
        return FALSE;
    }
    RunOptions asked = {.memory_rank = -1, .peak_time = TRUE, .phases = TRUE};
    g_autoptr(Result) result = run_plan(plan, &asked, error);
    if (result == NULL) {
        return FALSE;
    }
    if (plan->seq_chunk > 0) {
        const Plan settled = trials_settle(plan, result);
        result->largest_seq_chunk = chunk_bound_tokens(&settled);
    }
    advice_warn_cache(result, plan);
    if (!result->fits) {
        advise(result, call->words[0]);
    }
    g_autofree char *json = result_text(result);
    g_autofree char *summary = summary_text(plan, result);
    if (options->output != NULL && !run_files_write(options->output, plan, result, json, summary, error)) {
        return FALSE;
    }
    if (!command_print(error, "%s", options->json ? json : summary)) {
        return FALSE;
    }
    if (options->require_fit && !result->fits) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "%s: does not fit in memory", call->words[0]);
        return FALSE;
    }
    return TRUE;
}

static const CommandOption options[] = {
    {"json", 0, G_OPTION_ARG_NONE, G_STRUCT_OFFSET(Options, json), "Print the result as JSON, and nothing else", NULL},
    {"output", 'o', G_OPTION_ARG_FILENAME, G_STRUCT_OFFSET(Options, output),
     "Write result.json, summary.txt, operators.csv, memory.csv and trace.json (Perfetto) into DIR, which is made when absent", "DIR"},
    {"require-fit", 0, G_OPTION_ARG_NONE, G_STRUCT_OFFSET(Options, require_fit),
     "Exit with status 1 when the plan does not fit in memory", NULL},
    {NULL},
};

const CommandClass command_run = {
    .usage = "PLAN.json",
    .description = "Predicts one training step: its time and parts, rates, and peak memory.\n"
                   "`moesim PLAN.json` is the same. Plans to begin with are in workloads/presets.",
    .min_words = 1,
    .max_words = 1,
    .words = COMMAND_WORDS_FILES,
    .options = options,
    .options_size = sizeof(Options),
    .run = run,
};
