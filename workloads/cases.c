#include "workloads/cases.h"

#include <math.h>
#include <string.h>

#include "sim/base/csv-read.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"

/* Plan fields that are lists: a single word is a list of one. */
static const char *const list_paths[] = {
    "memory.keep",
    "workload.lora.targets",
    "parallel.pipeline.layers_per_stage",
};

static const char measured_prefix[] = "measured.";

struct Cases {
    CsvTable *table;
    char *base_dir;
    char *name;
    GPtrArray *ids;    /* char *, by row */
    GPtrArray *places; /* char *, by row */
    GArray *plan;      /* size_t: columns that are plan paths */
    GArray *measured;  /* size_t: columns that are result paths */
    int rank_column;   /* or -1 */
};

void cases_free(Cases *cases)
{
    if (cases == NULL) {
        return;
    }
    csv_table_free(cases->table);
    g_free(cases->base_dir);
    g_free(cases->name);
    g_ptr_array_unref(cases->ids);
    g_ptr_array_unref(cases->places);
    g_array_unref(cases->plan);
    g_array_unref(cases->measured);
    g_free(cases);
}

/* ---- cells ---- */

static gboolean is_list_path(const char *path)
{
    for (size_t i = 0; i < G_N_ELEMENTS(list_paths); i++) {
        if (strcmp(path, list_paths[i]) == 0) {
            return TRUE;
        }
    }
    return FALSE;
}

/* Whether the whole word reads as a number in some notation: such a word is never meant as a name. */
static gboolean looks_like_number(const char *word)
{
    if (!g_ascii_isdigit(word[0]) && strchr("+-.", word[0]) == NULL) {
        return FALSE;
    }
    char *end = NULL;
    g_ascii_strtod(word, &end);
    return end != word && *end == '\0';
}

static json_t *word_value(const char *word, GError **error)
{
    json_error_t problem;
    json_t *value = json_loads(word, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &problem);
    if (value != NULL) {
        return value;
    }
    if (looks_like_number(word) || strchr("[{\"", word[0]) != NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "'%s' is no JSON value: %s", word, json_cause(&problem));
        return NULL;
    }
    value = json_string(word);
    if (value == NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "not valid UTF-8");
    }
    return value;
}

json_t *cases_cell_value(const char *path, const char *cell, GError **error)
{
    if (!is_list_path(path) || cell[0] == '[') {
        return word_value(cell, error);
    }
    g_autoptr(json_t) list = json_array();
    g_auto(GStrv) words = g_strsplit(cell, " ", -1);
    for (char **word = words; *word != NULL; word++) {
        if ((*word)[0] == '\0') {
            continue;
        }
        json_t *value = word_value(*word, error);
        if (value == NULL) {
            return NULL;
        }
        json_array_append_new(list, value);
    }
    return g_steal_pointer(&list);
}

/* ---- paths ---- */

/* The object under that key, made when absent; NULL when something else stands there. */
static json_t *enter(json_t *object, const char *key, gboolean is_model)
{
    json_t *child = json_object_get(object, key);
    if (child == NULL) {
        json_object_set_new(object, key, json_object());
    } else if (is_model && json_is_string(child)) {
        json_t *model = json_object();
        json_object_set(model, "config", child);
        json_object_set_new(object, key, model);
    }
    child = json_object_get(object, key);
    return json_is_object(child) ? child : NULL;
}

gboolean cases_set(json_t *plan, const char *path, json_t *value, GError **error)
{
    g_autoptr(json_t) owned = value;
    g_auto(GStrv) keys = g_strsplit(path, ".", -1);
    json_t *object = plan;
    for (char **key = keys; *key != NULL; key++) {
        if ((*key)[0] == '\0') {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "'%s' is no dotted path", path);
            return FALSE;
        }
        if (key[1] == NULL) {
            json_object_set_new(object, *key, g_steal_pointer(&owned));
            return TRUE;
        }
        object = enter(object, *key, key == keys && strcmp(*key, "model") == 0);
        if (object == NULL) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                        "%s is set beside a field inside it, %s; keep one of them", *key, path);
            return FALSE;
        }
    }
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "a path must not be empty");
    return FALSE;
}

/* ---- tables ---- */

static gboolean below(const char *path, const char *top)
{
    size_t length = strlen(top);
    return strncmp(path, top, length) == 0 && path[length] == '.';
}

static gboolean check_contradictions(const Cases *cases, GError **error)
{
    for (guint i = 0; i < cases->plan->len; i++) {
        const char *inner = csv_table_column(cases->table, g_array_index(cases->plan, size_t, i));
        for (guint j = 0; j < cases->plan->len; j++) {
            const char *outer = csv_table_column(cases->table, g_array_index(cases->plan, size_t, j));
            gboolean model_by_name = strcmp(outer, "model") == 0 && strcmp(inner, "model.config") != 0;
            if (below(inner, outer) && !model_by_name) {
                g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                            "%s:1: columns %s and %s set the same field twice; keep one of them", cases->name, outer,
                            inner);
                return FALSE;
            }
        }
    }
    return TRUE;
}

static void sort_columns(Cases *cases)
{
    for (size_t column = 0; column < csv_table_n_columns(cases->table); column++) {
        const char *name = csv_table_column(cases->table, column);
        if (strcmp(name, "measured.rank") == 0) {
            cases->rank_column = (int)column;
        } else if (g_str_has_prefix(name, measured_prefix)) {
            g_array_append_val(cases->measured, column);
        } else if (strcmp(name, "model") == 0) {
            g_array_prepend_val(cases->plan, column); /* before what is set inside it */
        } else if (strcmp(name, "id") != 0 && strcmp(name, "source") != 0) {
            g_array_append_val(cases->plan, column);
        }
    }
}

static void name_rows(Cases *cases)
{
    int id = csv_table_find(cases->table, "id");
    for (size_t row = 0; row < csv_table_n_rows(cases->table); row++) {
        const char *text = id >= 0 ? csv_table_cell(cases->table, row, (size_t)id) : "";
        g_ptr_array_add(cases->ids,
                        text[0] != '\0' ? g_strdup(text) : g_strdup_printf("row %" G_GSIZE_FORMAT, row + 1));
        g_ptr_array_add(cases->places,
                        g_strdup_printf("%s:%" G_GSIZE_FORMAT, cases->name, csv_table_line(cases->table, row)));
    }
}

/* Takes the table. */
static Cases *cases_new(CsvTable *table, GError **error)
{
    g_autoptr(Cases) cases = g_new0(Cases, 1);
    cases->table = table;
    cases->name = g_strdup(csv_table_name(table));
    cases->base_dir = g_path_get_dirname(cases->name);
    cases->ids = g_ptr_array_new_with_free_func(g_free);
    cases->places = g_ptr_array_new_with_free_func(g_free);
    cases->plan = g_array_new(FALSE, FALSE, sizeof(size_t));
    cases->measured = g_array_new(FALSE, FALSE, sizeof(size_t));
    cases->rank_column = -1;
    if (csv_table_n_rows(table) == 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: no rows below the header", cases->name);
        return NULL;
    }
    sort_columns(cases);
    name_rows(cases);
    return check_contradictions(cases, error) ? g_steal_pointer(&cases) : NULL;
}

Cases *cases_load(const char *path, GError **error)
{
    CsvTable *table = csv_table_load(path, error);
    return table != NULL ? cases_new(table, error) : NULL;
}

Cases *cases_parse(const char *text, const char *name, GError **error)
{
    CsvTable *table = csv_table_parse(text, strlen(text), name, error);
    return table != NULL ? cases_new(table, error) : NULL;
}

size_t cases_n_rows(const Cases *cases)
{
    return csv_table_n_rows(cases->table);
}

const char *cases_id(const Cases *cases, size_t row)
{
    return g_ptr_array_index(cases->ids, row);
}

const char *cases_place(const Cases *cases, size_t row)
{
    return row == G_MAXSIZE ? cases->name : g_ptr_array_index(cases->places, row);
}

const char *cases_base_dir(const Cases *cases)
{
    return cases->base_dir;
}

json_t *cases_plan(const Cases *cases, size_t row, GError **error)
{
    g_autoptr(json_t) plan = json_object();
    for (guint i = 0; i < cases->plan->len; i++) {
        size_t column = g_array_index(cases->plan, size_t, i);
        const char *path = csv_table_column(cases->table, column);
        const char *cell = csv_table_cell(cases->table, row, column);
        if (cell[0] == '\0') {
            continue;
        }
        json_t *value = cases_cell_value(path, cell, error);
        if (value == NULL || !cases_set(plan, path, value, error)) {
            g_prefix_error(error, "%s: %s: ", cases_place(cases, row), path);
            return NULL;
        }
    }
    return g_steal_pointer(&plan);
}

size_t cases_n_measured(const Cases *cases)
{
    return cases->measured->len;
}

const char *cases_measured_path(const Cases *cases, size_t column)
{
    return csv_table_column(cases->table, g_array_index(cases->measured, size_t, column)) + strlen(measured_prefix);
}

gboolean cases_measured(const Cases *cases, size_t row, size_t column, double *ret_value, GError **error)
{
    size_t place = g_array_index(cases->measured, size_t, column);
    if (csv_table_cell(cases->table, row, place)[0] == '\0') {
        *ret_value = (double)NAN;
        return TRUE;
    }
    return csv_table_number(cases->table, row, place, ret_value, error);
}

gboolean cases_measured_rank(const Cases *cases, size_t row, int64_t *ret_rank, GError **error)
{
    const char *cell = cases->rank_column < 0 ? "" : csv_table_cell(cases->table, row, (size_t)cases->rank_column);
    gint64 rank = -1;
    if (cell[0] != '\0' && !g_ascii_string_to_signed(cell, 10, 0, G_MAXINT32, &rank, NULL)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: measured.rank: '%s' is no rank; expected a whole number from 0", cases_place(cases, row),
                    cell);
        return FALSE;
    }
    *ret_rank = rank;
    return TRUE;
}
