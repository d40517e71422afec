#include "workloads/plan/routing-file.h"

#include <math.h>

#include "sim/base/csv-read.h"
#include "sim/base/error.h"
#include "workloads/plan/routing-draw.h"

/* More layers or ranks than any file has. */
enum { INDEX_MAX = 1 << 20 };

/* The steps down to a layer's counts, one source's and one expert's. */
enum { STEPS_MAX = 3 };
typedef struct Way {
    const JsonDoc *doc;
    JsonStep steps[STEPS_MAX];
    size_t n;
} Way;

static Way way_down(const Way *way, int64_t idx)
{
    Way longer = *way;
    longer.steps[longer.n++] = (JsonStep){NULL, (size_t)idx};
    return longer;
}

#define way_fail(way, error, ...) json_doc_fail((way)->doc, (way)->steps, (way)->n, error, __VA_ARGS__)

/* Weights of a list of counts. */
static gboolean read_weights(json_t *list, const RoutingSpec *spec, const Way *way, double *ret_weights, GError **error)
{
    double sum = 0;
    if (!json_is_array(list) || (int64_t)json_array_size(list) != spec->experts) {
        g_autofree char *got = json_is_array(list) ? g_strdup_printf("%zu", json_array_size(list)) : g_strdup("no list");
        way_fail(way, error, "expected a list of %" G_GINT64_FORMAT " token counts, one for each expert of the model; got %s",
                 spec->experts, got);
        return FALSE;
    }
    for (int64_t e = 0; e < spec->experts; e++) {
        json_t *count = json_array_get(list, (size_t)e);
        ret_weights[e] = json_number_value(count);
        if (!json_is_number(count) || !(ret_weights[e] >= 0)) {
            Way at = way_down(way, e);
            char *text = json_dumps(count, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(12));
            g_autofree char *got = error_shorten(text);
            way_fail(&at, error, "a token count is a number of at least 0, not %s", got);
            free(text);
            return FALSE;
        }
        sum += ret_weights[e];
    }
    if (sum <= 0 && !spec->exact) {
        way_fail(way, error, "the token counts sum to 0");
        return FALSE;
    }
    return TRUE;
}

/* One list of counts, apportioned to the tokens of a source. */
static gboolean read_counts(json_t *list, const RoutingSpec *spec, const Way *way, int64_t *ret_tokens, GError **error)
{
    g_autofree double *weights = g_new(double, spec->experts);
    g_autofree double *share = g_new(double, spec->experts);
    if (!read_weights(list, spec, way, weights, error)) {
        return FALSE;
    }
    for (int64_t e = 0; spec->exact && e < spec->experts; e++) {
        ret_tokens[e] = (int64_t)weights[e];
    }
    if (!spec->exact) {
        routing_shares(weights, spec->experts, (double)spec->top_k, share);
        routing_apportion(share, spec->experts, spec->tokens, spec->tokens * spec->top_k, ret_tokens);
    }
    return TRUE;
}

gboolean routing_read_layer(const RoutingSpec *spec, int64_t table, int64_t *ret_tokens, GError **error)
{
    json_t *value = json_array_get(json_doc_root(spec->loads), (size_t)table);
    Way root = {.doc = spec->loads}, way = way_down(&root, table);
    gboolean by_source = json_is_array(json_array_get(value, 0));
    if (by_source && (int64_t)json_array_size(value) != spec->n_ranks) {
        way_fail(&way, error, "counts of %zu source ranks, but the expert-parallel group has %" G_GINT64_FORMAT, json_array_size(value),
                 spec->n_ranks);
        return FALSE;
    }
    for (int64_t source = 0; source < spec->n_ranks; source++) {
        Way of_source = way_down(&way, source);
        json_t *list = by_source ? json_array_get(value, (size_t)source) : value;
        if (!read_counts(list, spec, by_source ? &of_source : &way, ret_tokens + source * spec->experts, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

int64_t routing_read_shape(const RoutingSpec *spec, GError **error)
{
    int64_t n = (int64_t)json_array_size(json_doc_root(spec->loads)); /* 0 for other values */
    if (n != 1 && n != spec->n_layers) {
        json_doc_fail(spec->loads, NULL, 0, error,
                      "expected a list of loads for %" G_GINT64_FORMAT " MoE layers, or one for all of them; got %" G_GINT64_FORMAT,
                      spec->n_layers, n);
        return 0;
    }
    return n;
}

gboolean routing_check_measured(const RoutingSpec *spec, GError **error)
{
    int64_t n = routing_read_shape(spec, error);
    g_autofree int64_t *tokens = g_new(int64_t, spec->n_ranks * spec->experts);
    for (int64_t i = 0; i < n; i++) {
        if (!routing_read_layer(spec, i, tokens, error)) {
            return FALSE;
        }
    }
    return n > 0;
}

/* The cell as an index below `below`. */
static gboolean cell_index(const CsvTable *table, size_t row, int column, int64_t below, int64_t *ret_index, GError **error)
{
    double number;
    if (!csv_table_number(table, row, (size_t)column, &number, error)) {
        return FALSE;
    }
    if (number < 0 || number >= (double)below || number != floor(number)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s:%" G_GSIZE_FORMAT ": %s: %g is no whole number from 0 to %" G_GINT64_FORMAT, csv_table_name(table),
                    csv_table_line(table, row), csv_table_column(table, (size_t)column), number, below - 1);
        return FALSE;
    }
    *ret_index = (int64_t)number;
    return TRUE;
}

/* The idx-th list of a list, which grows to it. */
static json_t *list_at(json_t *list, int64_t idx)
{
    while ((int64_t)json_array_size(list) <= idx) {
        json_array_append_new(list, json_array());
    }
    return json_array_get(list, (size_t)idx);
}

/* Adds one row of the table. columns: layer, expert, tokens, source (or -1). */
static gboolean add_row(const CsvTable *table, size_t row, const int *columns, int64_t experts, json_t *loads, GError **error)
{
    int64_t layer, expert, source;
    double tokens;
    if (!cell_index(table, row, columns[0], INDEX_MAX, &layer, error) || !cell_index(table, row, columns[1], experts, &expert, error) ||
        !csv_table_number(table, row, (size_t)columns[2], &tokens, error)) {
        return FALSE;
    }
    if (!(tokens >= 0)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s:%" G_GSIZE_FORMAT ": tokens: a token count is a number of at least 0, not %g",
                    csv_table_name(table), csv_table_line(table, row), tokens);
        return FALSE;
    }
    json_t *list = list_at(loads, layer);
    if (columns[3] >= 0) {
        if (!cell_index(table, row, columns[3], INDEX_MAX, &source, error)) {
            return FALSE;
        }
        list = list_at(list, source);
    }
    while ((int64_t)json_array_size(list) < experts) {
        json_array_append_new(list, json_null());
    }
    if (!json_is_null(json_array_get(list, (size_t)expert))) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s:%" G_GSIZE_FORMAT ": expert: %" G_GINT64_FORMAT " of this layer%s has a row above",
                    csv_table_name(table), csv_table_line(table, row), expert, columns[3] >= 0 ? " and source" : "");
        return FALSE;
    }
    json_array_set_new(list, (size_t)expert, json_real(tokens));
    return TRUE;
}

/* Experts without a row have no tokens. */
static void fill_gaps(json_t *lists)
{
    for (size_t i = 0; i < json_array_size(lists); i++) {
        if (json_is_array(json_array_get(lists, i))) {
            fill_gaps(json_array_get(lists, i));
        } else if (json_is_null(json_array_get(lists, i))) {
            json_array_set_new(lists, i, json_real(0));
        }
    }
}

JsonDoc *routing_read_csv(const char *path, int64_t experts, GError **error)
{
    static const char *const names[] = {"layer", "expert", "tokens", "source"};
    g_autoptr(CsvTable) table = csv_table_load(path, error);
    int columns[G_N_ELEMENTS(names)];
    if (table == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        columns[i] = csv_table_find(table, names[i]);
        if (columns[i] < 0 && i < 3) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                        "%s:1: no column \"%s\"; loads have the columns layer, expert, tokens, and source where they are known "
                        "for each source rank",
                        path, names[i]);
            return NULL;
        }
    }
    g_autoptr(json_t) loads = json_array();
    for (size_t row = 0; row < csv_table_n_rows(table); row++) {
        if (!add_row(table, row, columns, experts, loads, error)) {
            return NULL;
        }
    }
    fill_gaps(loads);
    return json_doc_from_value(loads, path);
}
