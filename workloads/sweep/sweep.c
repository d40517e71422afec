#include "workloads/sweep/sweep.h"

#include <string.h>

#include "sim/base/error.h"
#include "sim/base/json-read.h"
#include "workloads/cases.h"

/* Fields that may hold the path of a file. */
static const char *const path_fields[] = {"model", "model.config", "cluster.file", "workload.routing.load_file"};

void sweep_free(Sweep *sweep)
{
    if (sweep == NULL) {
        return;
    }
    g_free(sweep->name);
    json_doc_free(sweep->doc);
    g_free(sweep->dir);
    g_free(sweep->base_dir);
    json_decref(sweep->base);
    json_decref(sweep->defaults);
    g_array_unref(sweep->fields);
    g_array_unref(sweep->axes);
    g_ptr_array_unref(sweep->constraints);
    g_free(sweep->objective.path);
    g_array_unref(sweep->pareto);
    g_ptr_array_unref(sweep->columns);
    g_free(sweep);
}

void sweep_fail(const Sweep *sweep, const char *key, int item, GError **error, const char *format, ...)
{
    const JsonStep steps[] = {{key, 0}, {NULL, (size_t)MAX(item, 0)}};
    va_list args;
    va_start(args, format);
    g_autofree char *what = g_strdup_vprintf(format, args);
    va_end(args);
    json_doc_fail(sweep->doc, steps, item >= 0 ? 2 : 1, error, "%s", what);
}

json_t *sweep_value(const Sweep *sweep, int64_t point, guint field)
{
    g_assert(point >= 0 && point < sweep->n_points);
    const SweepField *wanted = &g_array_index(sweep->fields, SweepField, field);
    for (guint a = sweep->axes->len; a-- > wanted->axis + 1;) {
        point /= g_array_index(sweep->axes, SweepAxis, a).n_values;
    }
    const SweepAxis *axis = &g_array_index(sweep->axes, SweepAxis, wanted->axis);
    return json_array_get(json_array_get(axis->values, (size_t)(point % axis->n_values)), wanted->place);
}

static gboolean is_path_field(const char *path)
{
    for (size_t i = 0; i < G_N_ELEMENTS(path_fields); i++) {
        if (strcmp(path, path_fields[i]) == 0) {
            return TRUE;
        }
    }
    return FALSE;
}

/* A file named in a grid is relative to the sweep file, the plan's own are relative to the base's. */
static json_t *value_for_plan(const Sweep *sweep, const char *path, json_t *value)
{
    const char *text = json_string_value(value);
    gboolean is_file = text != NULL && is_path_field(path) && (strchr(text, '/') != NULL || g_str_has_suffix(text, ".json"));
    if (!is_file || g_path_is_absolute(text) || strcmp(sweep->dir, sweep->base_dir) == 0) {
        return json_incref(value);
    }
    g_autofree char *here = g_canonicalize_filename(sweep->dir, NULL);
    g_autofree char *full = g_build_filename(here, text, NULL);
    return json_string(full);
}

gboolean sweep_set_field(const Sweep *sweep, int64_t point, guint field, json_t *plan, GError **error)
{
    const char *path = g_array_index(sweep->fields, SweepField, field).path;
    json_t *value = sweep_value(sweep, point, field);
    return json_is_null(value) || cases_set(plan, path, value_for_plan(sweep, path, value), error);
}

json_t *sweep_plan(const Sweep *sweep, int64_t point, GError **error)
{
    g_autoptr(json_t) plan = json_deep_copy(sweep->base);
    for (guint i = 0; i < sweep->fields->len; i++) {
        if (!sweep_set_field(sweep, point, i, plan, error)) {
            return NULL;
        }
    }
    return g_steal_pointer(&plan);
}

/* ---- cells ---- */

/* Words between blanks, when every item is a word that reads back as itself. */
static char *list_cell(const char *path, json_t *list)
{
    g_autoptr(GString) text = g_string_new(NULL);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *item = json_array_get(list, i);
        if (json_is_string(item) && (strpbrk(json_string_value(item), " []\"") != NULL || json_string_length(item) == 0)) {
            return NULL;
        }
        char *number = json_is_string(item) ? NULL : json_dumps(item, JSON_ENCODE_ANY | JSON_COMPACT);
        g_string_append_printf(text, "%s%s", i > 0 ? " " : "", number != NULL ? number : json_string_value(item));
        free(number);
    }
    g_autoptr(json_t) back = cases_cell_value(path, text->str, NULL);
    return back != NULL && json_equal(back, list) ? g_strdup(text->str) : NULL;
}

char *sweep_cell(const char *path, json_t *value)
{
    if (json_is_null(value)) {
        return NULL;
    }
    char *cell = json_is_array(value) ? list_cell(path, value) : NULL;
    if (json_is_string(value) && json_string_length(value) > 0) {
        g_autoptr(json_t) back = cases_cell_value(path, json_string_value(value), NULL);
        cell = back != NULL && json_equal(back, value) ? g_strdup(json_string_value(value)) : NULL;
    }
    if (cell == NULL) {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17));
        cell = g_strdup(text);
        free(text);
    }
    return cell;
}

/* ---- fingerprint ---- */

static void add_json(GChecksum *sum, json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    g_checksum_update(sum, (const guchar *)text, (gssize)strlen(text) + 1);
    free(text);
}

/* The content of every file that a text in the value may name. */
static void add_files(GChecksum *sum, json_t *value, const char *dir)
{
    const char *key, *text = json_string_value(value);
    json_t *item;
    size_t i;
    if (text != NULL && strpbrk(text, "/.") != NULL) {
        g_autofree char *path = g_path_is_absolute(text) ? g_strdup(text) : g_build_filename(dir, text, NULL);
        g_autofree char *content = NULL;
        gsize length;
        if (g_file_test(path, G_FILE_TEST_IS_REGULAR) && g_file_get_contents(path, &content, &length, NULL)) {
            g_checksum_update(sum, (const guchar *)content, (gssize)length);
        }
    }
    json_object_foreach (value, key, item) {
        add_files(sum, item, dir);
    }
    json_array_foreach (value, i, item) {
        add_files(sum, item, dir);
    }
}

char *sweep_fingerprint(const Sweep *sweep)
{
    GChecksum *sum = g_checksum_new(G_CHECKSUM_SHA256);
    g_checksum_update(sum, (const guchar *)MOESIM_VERSION, -1);
    add_json(sum, sweep->base);
    add_files(sum, sweep->base, sweep->base_dir);
    for (guint i = 0; i < sweep->fields->len; i++) {
        const SweepField *field = &g_array_index(sweep->fields, SweepField, i);
        g_checksum_update(sum, (const guchar *)field->path, (gssize)strlen(field->path) + 1);
    }
    for (guint a = 0; a < sweep->axes->len; a++) {
        json_t *values = g_array_index(sweep->axes, SweepAxis, a).values;
        add_json(sum, values);
        add_files(sum, values, sweep->dir);
    }
    for (guint i = 0; i < sweep->constraints->len; i++) {
        const char *text = expression_text(g_ptr_array_index(sweep->constraints, i));
        g_checksum_update(sum, (const guchar *)text, (gssize)strlen(text) + 1);
    }
    for (guint i = 0; i < sweep->columns->len; i++) {
        const char *text = g_ptr_array_index(sweep->columns, i);
        g_checksum_update(sum, (const guchar *)text, (gssize)strlen(text) + 1);
    }
    char *text = g_strdup(g_checksum_get_string(sum));
    g_checksum_free(sum);
    return text;
}
