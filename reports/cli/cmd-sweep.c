/*
 * moesim sweep SWEEP.json: many plans, a row each.
 */
#include <gio/gio.h>
#include <string.h>

#include "reports-schema.h"
#include "reports/cli/command.h"
#include "reports/cli/sweep-mpi.h"
#include "reports/cli/sweep-report.h"
#include "reports/cli/sweep-run.h"
#include "reports/cli/sweep-search.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"

typedef struct Options {
    char *output, *format, *shard;
    gint64 threads;
    gboolean resume, merge, search;
} Options;

static json_t *plan_schema(void)
{
    g_autoptr(GBytes) bytes = g_resource_lookup_data(reports_schema_get_resource(), "/moesim/schema/plan.schema.json",
                                                     G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);
    json_t *schema = json_loadb(g_bytes_get_data(bytes, NULL), g_bytes_get_size(bytes), 0, NULL);
    g_assert(schema != NULL);
    return schema;
}

static gboolean read_options(const Options *options, SweepRun *run, RowFormat *ret_format, GError **error)
{
    *ret_format = options->output != NULL ? row_format_of(options->output) : ROW_CSV;
    if (options->format != NULL) {
        if (strcmp(options->format, "csv") != 0 && strcmp(options->format, "jsonl") != 0) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "--format: '%s' is none of csv, jsonl", options->format);
            return FALSE;
        }
        *ret_format = strcmp(options->format, "csv") == 0 ? ROW_CSV : ROW_JSONL;
    }
    if (options->threads < 0 || options->threads > 4096) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "--threads: expected a number from 1 to 4096");
        return FALSE;
    }
    run->shard = (SweepShard){0, 1};
    run->path = options->output;
    run->resume = options->resume;
    if (options->merge && (options->resume || options->shard != NULL)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "--merge joins finished files; it takes neither --resume nor --shard");
        return FALSE;
    }
    if (options->search && (options->merge || options->resume || options->shard != NULL)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "--search is one run; it takes none of --merge, --resume, --shard");
        return FALSE;
    }
    return options->shard == NULL || sweep_shard_parse(options->shard, &run->shard, error);
}

/* The end of every sweep: no row that says anything is a mistake in the sweep file. */
static gboolean report(const SweepRun *run, GError **error)
{
    SweepCounts counts;
    g_autofree char *text = sweep_report_text(run->sweep, run->layout, run->path, run->shard.n > 1, &counts, error);
    g_autofree char *reason = counts.first_reason;
    if (text == NULL) {
        return FALSE;
    }
    if (counts.rows == 0 && run->shard.n == 1) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: the constraints leave out all %" G_GINT64_FORMAT " combinations",
                    run->sweep->name, run->sweep->n_points);
        return FALSE;
    }
    if (counts.rows > 0 && run->shard.n == 1 && counts.by_status[SWEEP_INVALID] == counts.rows) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: no row is valid; the first: %s", run->sweep->name, reason);
        return FALSE;
    }
    return command_print(error, "%s", text);
}

/* What rank 0 does, or the only process. */
static gboolean lead(const SweepRun *run, const CommandCall *call, GError **error)
{
    const Options *options = call->options;
    if (options->search) {
        gboolean found = sweep_search(run, error);
        sweep_mpi_dismiss();
        return found;
    }
    gboolean done = options->merge ? sweep_merge(run, call->words + 1, call->n_words - 1, error) : sweep_run(run, error);
    gboolean readable = run->path != NULL && g_file_test(run->path, G_FILE_TEST_IS_REGULAR);
    sweep_mpi_dismiss();
    return done && (!readable || report(run, error));
}

static gboolean run_loaded(SweepRun *run, int rank, const CommandCall *call, RowFormat format, GError **error)
{
    g_autoptr(json_t) schema = plan_schema();
    g_autoptr(Sweep) sweep = sweep_load(call->words[0], schema, error);
    g_autoptr(SweepLayout) layout = sweep != NULL ? sweep_layout_new(sweep, format, error) : NULL;
    if (!sweep_mpi_agree(layout != NULL) && rank > 0) {
        g_clear_error(error); /* rank 0 says what is wrong */
        return TRUE;
    }
    if (layout == NULL) {
        return FALSE;
    }
    run->sweep = sweep;
    run->layout = layout;
    if (rank == 0) {
        return lead(run, call, error);
    }
    command_catch_interrupt(); /* rank 0 ends in good order, and sends this one home */
    SweepWork work = {sweep, layout, run->shard, 0};
    sweep_mpi_serve(&work, run->n_threads);
    return TRUE;
}

static gboolean run_sweep(const CommandCall *call, GError **error)
{
    const Options *options = call->options;
    SweepRun run = {0};
    RowFormat format;
    int rank;
    if (!read_options(options, &run, &format, error)) {
        return FALSE;
    }
    if (call->n_words > 1 && !options->merge) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "sweep: '%s' is one word too many; see `moesim sweep --help`",
                    call->words[1]);
        return FALSE;
    }
    gboolean done = sweep_mpi_begin(&rank, &run.n_ranks, error);
    if (done) {
        run.n_threads = options->threads > 0 ? (int)options->threads : run.n_ranks > 1 ? 1 : (int)g_get_num_processors();
        done = run_loaded(&run, rank, call, format, error);
    }
    sweep_mpi_end();
    return done;
}

static const CommandOption options[] = {
    {"output", 'o', G_OPTION_ARG_FILENAME, G_STRUCT_OFFSET(Options, output),
     "Write the rows there and print a report; without it rows go to standard output", "FILE"},
    {"format", 0, G_OPTION_ARG_STRING, G_STRUCT_OFFSET(Options, format),
     "csv or jsonl (default: by the end of FILE, .jsonl or .ndjson, else csv)", "NAME"},
    {"threads", 'j', G_OPTION_ARG_INT64, G_STRUCT_OFFSET(Options, threads), "Threads (default: one for each processor; under mpirun, one for each process)", "N"},
    {"resume", 0, G_OPTION_ARG_NONE, G_STRUCT_OFFSET(Options, resume), "Go on with FILE from where it ends", NULL},
    {"shard", 0, G_OPTION_ARG_STRING, G_STRUCT_OFFSET(Options, shard), "Only the K-th of N parts, from 1", "K/N"},
    {"merge", 0, G_OPTION_ARG_NONE, G_STRUCT_OFFSET(Options, merge), "Join the files of all shards, named behind SWEEP.json", NULL},
    {"search", 0, G_OPTION_ARG_NONE, G_STRUCT_OFFSET(Options, search),
     "Find the best rows without evaluating all, and prove it; FILE gets these rows alone", NULL},
    {NULL},
};

const CommandClass command_sweep = {
    .usage = "SWEEP.json [SHARD...]",
    .description = "SWEEP.json holds a base plan and what is varied; see the man page, or moesim schema sweep.\n"
                   "The file grows row by row in the order of the combinations, whatever the number of threads;\n"
                   "rows that are invalid or do not fit say why.",
    .min_words = 1,
    .max_words = -1,
    .words = COMMAND_WORDS_FILES,
    .options = options,
    .options_size = sizeof(Options),
    .run = run_sweep,
};
