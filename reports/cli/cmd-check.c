/*
 * moesim check: the reference numerics against finite differences, against one another and against golden numbers; or a
 * plan's program in values.
 */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "models/check-suite.h"
#include "reports/cli/command.h"
#include "reports/cli/proof.h"
#include "reports/out/table.h"
#include "reports/out/text.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h" /* g_autoptr(json_t) */

/* No such number was typed. */
#define NOT_GIVEN G_MININT64

typedef struct Options {
    char *golden, *filter;
    gint64 plans, seed;
    gboolean json, tolerance_report;
} Options;

/* What all checks of one group and subject showed together. */
typedef struct Group {
    char *name; /* "operators/rmsnorm" */
    int64_t n, n_failed;
    double worst;
    char *worst_at;
} Group;

typedef struct CheckRun {
    const Options *options;
    CheckSuite *suite;
    json_t *checks;    /* with --json */
    GPtrArray *groups; /* Group, in order */
    int64_t n_failed;
} CheckRun;

static void group_free(void *at)
{
    Group *group = at;
    g_free(group->name);
    g_free(group->worst_at);
    g_free(group);
}

/* "operators/rmsnorm/sample-0" belongs to "operators/rmsnorm", "golden/kda__T1/float64" to "golden/kda float64". */
static char *group_name(const char *check)
{
    g_auto(GStrv) parts = g_strsplit(check, "/", 3);
    char *end = parts[1] != NULL ? strstr(parts[1], "__") : NULL;
    if (end != NULL) {
        *end = '\0';
        return g_strdup_printf("%s/%s %s", parts[0], parts[1], parts[2] != NULL ? parts[2] : "");
    }
    return g_strdup_printf("%s/%s", parts[0], parts[1] != NULL ? parts[1] : "");
}

static Group *group_find(CheckRun *run, const char *name)
{
    for (guint i = 0; i < run->groups->len; i++) {
        Group *group = run->groups->pdata[i];
        if (strcmp(group->name, name) == 0) {
            return group;
        }
    }
    Group *group = g_new0(Group, 1);
    group->name = g_strdup(name);
    g_ptr_array_add(run->groups, group);
    return group;
}

static void group_note(CheckRun *run, const char *check, const CheckOutcome *outcome)
{
    g_autofree char *name = group_name(check);
    Group *group = group_find(run, name);
    group->n++;
    group->n_failed += outcome->passed ? 0 : 1;
    if (group->worst_at == NULL || outcome->worst > group->worst) {
        group->worst = outcome->worst;
        g_free(group->worst_at);
        group->worst_at = g_strdup(check);
    }
}

static gboolean print_tap(size_t idx, const char *name, const CheckOutcome *outcome, GError **error)
{
    return command_print(error, "%sok %" G_GSIZE_FORMAT " - %s\n", outcome->passed ? "" : "not ", idx + 1, name) &&
           (outcome->passed || command_print(error, "# %s\n", outcome->detail));
}

static void note_json(CheckRun *run, const char *name, const CheckOutcome *outcome)
{
    json_t *check = json_pack("{s:s, s:b, s:s}", "name", name, "passed", outcome->passed, "detail", outcome->detail);
    json_object_set_new(check, "part_of_bound", isfinite(outcome->worst) ? json_real(outcome->worst) : json_null());
    json_array_append_new(run->checks, check);
}

static gboolean run_one(CheckRun *run, size_t idx, GError **error)
{
    const char *name = check_suite_name(run->suite, idx);
    CheckOutcome outcome;
    check_suite_run(run->suite, idx, &outcome);
    run->n_failed += outcome.passed ? 0 : 1;
    gboolean ok = TRUE;
    if (run->options->json) {
        note_json(run, name, &outcome);
    } else if (run->options->tolerance_report) {
        group_note(run, name, &outcome);
    } else {
        ok = print_tap(idx, name, &outcome, error);
    }
    check_outcome_clear(&outcome);
    return ok;
}

static gboolean print_json(const CheckRun *run, GError **error)
{
    json_int_t n = (json_int_t)check_suite_n(run->suite);
    g_autoptr(json_t) root =
        json_pack("{s:s, s:I, s:I, s:O}", "schema", "moesim.check/1", "passed", n - (json_int_t)run->n_failed, "failed",
                  (json_int_t)run->n_failed, "checks", run->checks);
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    gboolean ok = command_print(error, "%s\n", text);
    free(text);
    return ok;
}

/* How near each group came to its bounds. */
static gboolean print_tolerances(const CheckRun *run, GError **error)
{
    g_autoptr(Table) table = table_new();
    size_t name = table_add_column(table, "checks", TABLE_TEXT, TABLE_PLAIN),
           n = table_add_column(table, "number", TABLE_INTEGER, TABLE_PLAIN);
    size_t failed = table_add_column(table, "failed", TABLE_INTEGER, TABLE_PLAIN),
           worst = table_add_column(table, "part of bound", TABLE_TEXT, TABLE_PLAIN);
    size_t at = table_add_column(table, "worst", TABLE_TEXT, TABLE_PLAIN);
    for (guint i = 0; i < run->groups->len; i++) {
        const Group *group = run->groups->pdata[i];
        g_autofree char *part = g_strdup_printf("%.2g", group->worst);
        table_add_row(table);
        table_put_text(table, name, group->name);
        table_put_integer(table, n, group->n);
        table_put_integer(table, failed, group->n_failed);
        table_put_text(table, worst, part);
        table_put_text(table, at, group->worst_at);
    }
    g_autoptr(GString) text = g_string_new(NULL);
    text_append_table(text, table, 0);
    return command_print(error, "%s", text->str);
}

static gboolean run_all(CheckRun *run, GError **error)
{
    size_t n = check_suite_n(run->suite);
    gboolean tap = !run->options->json && !run->options->tolerance_report;
    if (tap && !command_print(error, "1..%" G_GSIZE_FORMAT "\n", n)) {
        return FALSE;
    }
    for (size_t i = 0; i < n; i++) {
        if (command_interrupted(error) || !run_one(run, i, error)) {
            return FALSE;
        }
        command_progress(i, n, "checks");
    }
    command_progress(1, 1, "");
    if (run->options->json) {
        return print_json(run, error);
    }
    return tap || print_tolerances(run, error);
}

/* Proofs of plans take no option of the reference numerics. */
static gboolean run_proofs(const CommandCall *call, GError **error)
{
    const Options *options = call->options;
    gboolean drawn = options->plans != NOT_GIVEN;
    if (options->golden != NULL || options->filter != NULL || options->tolerance_report) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "options of the reference numerics have no effect on plans");
        return FALSE;
    }
    if (drawn && call->n_words > 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "--plans draws plans, so %s has no effect", call->words[0]);
        return FALSE;
    }
    if (!drawn && options->seed != NOT_GIVEN) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "--seed has no effect without --plans");
        return FALSE;
    }
    return drawn ? proof_drawn(options->plans, options->seed != NOT_GIVEN ? options->seed : 1, options->json, error)
                 : proof_plan(call->words[0], options->json, error);
}

static gboolean run(const CommandCall *call, GError **error)
{
    const Options *options = call->options;
    if (call->n_words == 1 || options->plans != NOT_GIVEN || options->seed != NOT_GIVEN) {
        return run_proofs(call, error);
    }
    if (options->json && options->tolerance_report) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "--json and --tolerance-report exclude each other");
        return FALSE;
    }
    g_autoptr(CheckSuite) suite = check_suite_new(options->golden, options->filter, error);
    if (suite == NULL) {
        return FALSE;
    }
    size_t n = check_suite_n(suite);
    if (n == 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "--filter: no check has \"%s\" in its name",
                    options->filter);
        return FALSE;
    }
    command_catch_interrupt();
    g_autoptr(json_t) checks = json_array();
    g_autoptr(GPtrArray) groups = g_ptr_array_new_with_free_func(group_free);
    CheckRun all = {.options = options, .suite = suite, .checks = checks, .groups = groups};
    if (!run_all(&all, error)) {
        return FALSE;
    }
    if (all.n_failed > 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED,
                    "%" G_GINT64_FORMAT " of %" G_GSIZE_FORMAT " checks failed", all.n_failed, n);
        return FALSE;
    }
    return TRUE;
}

static const CommandOption options[] = {
    {"golden", 0, G_OPTION_ARG_FILENAME, G_STRUCT_OFFSET(Options, golden),
     "Also run the cases in DIR/ops and the training runs in DIR/train", "DIR"},
    {"filter", 0, G_OPTION_ARG_STRING, G_STRUCT_OFFSET(Options, filter), "Only checks with TEXT in their name", "TEXT"},
    {"json", 0, G_OPTION_ARG_NONE, G_STRUCT_OFFSET(Options, json), "Print one JSON object", NULL},
    {"tolerance-report", 0, G_OPTION_ARG_NONE, G_STRUCT_OFFSET(Options, tolerance_report),
     "Print how near each group of checks came to its bounds", NULL},
    {"plans", 0, G_OPTION_ARG_INT64, G_STRUCT_OFFSET(Options, plans), "Prove N drawn plans instead", "N"},
    {"seed", 0, G_OPTION_ARG_INT64, G_STRUCT_OFFSET(Options, seed), "Seed of the first of them (default 1)", "S"},
    {NULL},
};

static void init(void *at)
{
    Options *all = at;
    all->plans = all->seed = NOT_GIVEN;
}

const CommandClass command_check = {
    .usage = "[PLAN.json]",
    .description = "With a plan: reduces it, runs its program in values on up to 64 virtual ranks, and compares losses,\n"
                   "gradients, parameters and expert loads with one rank that shards, cuts and recomputes nothing, and the\n"
                   "memory held with the memory predicted. With --plans: the same for random plans; one that fails is made small\n"
                   "and printed.\n"
                   "Without one: runs the reference kernels of every operator: gradients against finite differences, counted FLOPs\n"
                   "and bytes against the cost formulas, float32 against float64, fused against unfused forms, and\n"
                   "all against numbers of an independent implementation. Output is TAP.",
    .max_words = 1,
    .words = COMMAND_WORDS_FILES,
    .options = options,
    .options_size = sizeof(Options),
    .init = init,
    .run = run,
};
