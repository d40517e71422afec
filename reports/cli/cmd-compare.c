/*
 * moesim compare A B: two results, or plans to be predicted, value by value.
 *
 * A is the reference. With a bound, B fails when its step takes longer, or its peak memory is larger, by more
 * than that, or when it no longer fits: what a performance check in continuous integration asks.
 */
#include <math.h>
#include <string.h>

#include "reports/cli/command.h"
#include "reports/out/text.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"
#include "workloads/run/run.h"

typedef struct Options {
    double fail_above; /* percent */
} Options;

static const char result_schema[] = "moesim.result/1";

static void init(void *data)
{
    ((Options *)data)->fail_above = command_no_bound;
}

/* The result object in a file, or of the plan in it; new reference. */
static json_t *load(const char *path, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_load(path, FALSE, error);
    if (doc == NULL) {
        return NULL;
    }
    json_t *schema = json_object_get(json_doc_root(doc), "schema");
    if (schema == NULL) {
        g_autoptr(Plan) plan = plan_load(path, error);
        g_autoptr(Result) result = plan != NULL ? run_plan(plan, NULL, error) : NULL;
        return result != NULL ? result_to_json(result) : NULL;
    }
    if (g_strcmp0(json_string_value(schema), result_schema) != 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: schema: expected \"%s\"", path, result_schema);
        return NULL;
    }
    return json_incref(json_doc_root(doc));
}

static double change_percent(double from, double to)
{
    if (!(from > 0 || from < 0)) {
        return to > 0 || to < 0 ? (double)NAN : 0;
    }
    return 100 * (to - from) / fabs(from);
}

/* ---- the table ---- */

static char *show(const char *path, json_t *value)
{
    if (json_is_boolean(value)) {
        return g_strdup(json_is_true(value) ? "yes" : "no");
    }
    if (!json_is_number(value)) {
        return g_strdup("-");
    }
    if (g_str_has_suffix(path, "_bytes")) {
        g_autofree char *gib = text_gib((int64_t)json_number_value(value));
        return g_strdup_printf("%s GiB", gib);
    }
    gboolean is_time = g_str_has_suffix(path, "_s") && !g_str_has_suffix(path, "per_s");
    return is_time ? text_seconds(json_number_value(value)) : text_count(json_number_value(value));
}

static void add_row(Table *table, const char *path, json_t *a, json_t *b)
{
    g_autofree char *text_a = show(path, result_value_at(a, path));
    g_autofree char *text_b = show(path, result_value_at(b, path));
    table_add_row(table);
    table_put_text(table, 0, path);
    table_put_text(table, 1, text_a);
    table_put_text(table, 2, text_b);
    table_put_number(table, 3, change_percent(result_number_at(a, path), result_number_at(b, path)));
}

/* Adds the numbers and truth values below `part` of a; lists and texts are left out. */
static void add_rows(Table *table, json_t *part, const char *prefix, json_t *a, json_t *b)
{
    const char *key;
    json_t *value;
    json_object_foreach (part, key, value) {
        g_autofree char *path = prefix[0] != '\0' ? g_strdup_printf("%s.%s", prefix, key) : g_strdup(key);
        if (json_is_object(value)) {
            add_rows(table, value, path, a, b);
        } else if (json_is_number(value) || json_is_boolean(value)) {
            add_row(table, path, a, b);
        }
    }
}

static gboolean print_comparison(json_t *a, json_t *b, const char *path_a, GError **error)
{
    g_autoptr(Table) table = table_new();
    table_add_column(table, "value", TABLE_TEXT, TABLE_PLAIN);
    table_add_column(table, "A", TABLE_TEXT, TABLE_PLAIN);
    table_add_column(table, "B", TABLE_TEXT, TABLE_PLAIN);
    table_add_column(table, "change", TABLE_NUMBER, TABLE_PERCENT);
    add_rows(table, a, "", a, b);
    if (table_n_rows(table) == 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "compare: %s holds no number, so there is nothing to compare", path_a);
        return FALSE;
    }
    g_autoptr(GString) text = g_string_new(NULL);
    text_append_table(text, table, 0);
    g_string_append(text, "GiB = 2^30 bytes\n");
    return command_print(error, "%s", text->str);
}

/* ---- the verdict ---- */

static void judge(json_t *a, json_t *b, const char *path, double bound, GString *complaints)
{
    double change = change_percent(result_number_at(a, path), result_number_at(b, path));
    if (!isfinite(change)) {
        g_string_append_printf(complaints, "; %s: cannot be compared", path);
    } else if (change > bound) {
        g_string_append_printf(complaints, "; %s: %.3f %% more, over %g %%", path, change, bound);
    }
}

static gboolean verdict(json_t *a, json_t *b, double bound, GError **error)
{
    if (!command_bound_given(bound)) {
        return TRUE;
    }
    g_autoptr(GString) complaints = g_string_new(NULL);
    judge(a, b, "step_time_s", bound, complaints);
    judge(a, b, "peak_memory_bytes", bound, complaints);
    if (result_number_at(a, "fits") > result_number_at(b, "fits")) {
        g_string_append(complaints, "; no longer fits in memory");
    }
    if (complaints->len == 0) {
        return TRUE;
    }
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "compare: %s", complaints->str + strlen("; "));
    return FALSE;
}

static gboolean run(const CommandCall *call, GError **error)
{
    const Options *options = call->options;
    if (!command_check_bound("fail-above", options->fail_above, error)) {
        return FALSE;
    }
    g_autoptr(json_t) a = load(call->words[0], error);
    g_autoptr(json_t) b = a != NULL ? load(call->words[1], error) : NULL;
    return b != NULL && print_comparison(a, b, call->words[0], error) && verdict(a, b, options->fail_above, error);
}

static const CommandOption options[] = {
    {"fail-above", 0, G_OPTION_ARG_DOUBLE, G_STRUCT_OFFSET(Options, fail_above),
     "Fail when B's step time or peak memory is larger by more than this", "PERCENT"},
    {NULL},
};

const CommandClass command_compare = {
    .usage = "A.json B.json",
    .description = "A and B are results (moesim run --json) or plans, which are predicted first. A is the reference.",
    .min_words = 2,
    .max_words = 2,
    .words = COMMAND_WORDS_FILES,
    .options = options,
    .options_size = sizeof(Options),
    .init = init,
    .run = run,
};
