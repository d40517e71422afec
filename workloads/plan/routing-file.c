#include "workloads/plan/routing-file.h"

#include <math.h>

#include "sim/base/csv-read.h"
#include "sim/base/error.h"
#include "workloads/plan/routing-draw.h"

/* More layers or ranks than any file has. */
enum { INDEX_MAX = 1 << 20 };

/* One list of counts, apportioned to the tokens of a source. */
static gboolean read_counts(json_t *list, const RoutingSpec *spec, const char *where, int64_t *ret_tokens,
                            GError **error)
{
    g_autofree double *weights = g_new(double, spec->experts);
    g_autofree double *share = g_new(double, spec->experts);
    double sum = 0;
    if (!json_is_array(list) || (int64_t)json_array_size(list) != spec->experts) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: expected a list of %" G_GINT64_FORMAT " token counts, one for each expert of the model", where,
                    spec->experts);
        return FALSE;
    }
    for (int64_t e = 0; e < spec->experts; e++) {
        json_t *count = json_array_get(list, (size_t)e);
        weights[e] = json_number_value(count);
        if (!json_is_number(count) || !(weights[e] >= 0)) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                        "%s[%" G_GINT64_FORMAT "]: a token count is a number of at least 0", where, e);
            return FALSE;
        }
        sum += weights[e];
    }
    if (sum <= 0 && !spec->exact) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: the token counts sum to 0", where);
        return FALSE;
    }
    for (int64_t e = 0; spec->exact && e < spec->experts; e++) {
        ret_tokens[e] = (int64_t)weights[e];
    }
    if (spec->exact) {
        return TRUE;
    }
    routing_shares(weights, spec->experts, (double)spec->top_k, share);
    routing_apportion(share, spec->experts, spec->tokens, spec->tokens * spec->top_k, ret_tokens);
    return TRUE;
}

gboolean routing_read_layer(json_t *value, const RoutingSpec *spec, const char *where, int64_t *ret_tokens,
                           GError **error)
{
    gboolean by_source = json_is_array(json_array_get(value, 0));
    if (by_source && (int64_t)json_array_size(value) != spec->n_ranks) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: counts of %zu source ranks, but the expert-parallel group has %" G_GINT64_FORMAT, where,
                    json_array_size(value), spec->n_ranks);
        return FALSE;
    }
    for (int64_t source = 0; source < spec->n_ranks; source++) {
        g_autofree char *place =
            by_source ? g_strdup_printf("%s[%" G_GINT64_FORMAT "]", where, source) : g_strdup(where);
        json_t *list = by_source ? json_array_get(value, (size_t)source) : value;
        if (!read_counts(list, spec, place, ret_tokens + source * spec->experts, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

int64_t routing_read_shape(const RoutingSpec *spec, const char *place, GError **error)
{
    int64_t n = (int64_t)json_array_size(spec->loads); /* 0 for other values */
    if (n != 1 && n != spec->n_layers) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: expected a list of loads for %" G_GINT64_FORMAT
                    " MoE layers, or one for all of them; got %" G_GINT64_FORMAT,
                    place, spec->n_layers, n);
        return 0;
    }
    return n;
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
    json_t *list = list_at(loads, layer);
    if (columns[3] >= 0) {
        if (!cell_index(table, row, columns[3], INDEX_MAX, &source, error)) {
            return FALSE;
        }
        list = list_at(list, source);
    }
    while ((int64_t)json_array_size(list) < experts) {
        json_array_append_new(list, json_real(0));
    }
    json_array_set_new(list, (size_t)expert, json_real(tokens));
    return TRUE;
}

json_t *routing_read_csv(const char *path, int64_t experts, GError **error)
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
    json_t *loads = json_array();
    for (size_t row = 0; row < csv_table_n_rows(table); row++) {
        if (!add_row(table, row, columns, experts, loads, error)) {
            json_decref(loads);
            return NULL;
        }
    }
    return loads;
}
