/*
 * Sweep files, read. Every mistake is reported at its place in the file.
 */
#include <gio/gio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/base/error.h"
#include "sim/base/json-read.h"
#include "sweep-presets.h"
#include "workloads/sweep/sweep-names.h"
#include "workloads/sweep/sweep-values.h"
#include "workloads/sweep/sweep.h"

enum { TOP = 20, TOP_MAX = 10000 };

typedef struct Reader {
    Sweep *sweep;
    json_t *schema; /* of plans */
    SweepNames *names;
} Reader;

/* ---- base ---- */

/* The defaults that a schema names, as a plan object; NULL when it names none. */
static json_t *schema_defaults(json_t *schema)
{
    json_t *fixed = json_object_get(schema, "default");
    fixed = fixed != NULL ? fixed : json_object_get(schema, "const");
    if (fixed != NULL) {
        return json_incref(fixed);
    }
    json_t *object = NULL, *member;
    const char *key;
    json_object_foreach (json_object_get(schema, "properties"), key, member) {
        json_t *value = schema_defaults(member);
        if (value != NULL) {
            object = object != NULL ? object : json_object();
            json_object_set_new(object, key, value);
        }
    }
    return object;
}

static void read_base(Reader *reader, JsonObject *root)
{
    Sweep *sweep = reader->sweep;
    json_t *value = json_object_raw(root, "base");
    sweep->base_dir = g_strdup(sweep->dir);
    if (json_is_object(value)) {
        sweep->base = json_incref(value);
    } else if (json_is_string(value)) {
        const char *text = json_string_value(value);
        g_autofree char *path = g_path_is_absolute(text) ? g_strdup(text) : g_build_filename(sweep->dir, text, NULL);
        GError *error = NULL;
        g_autoptr(JsonDoc) doc = json_doc_load(path, FALSE, &error);
        if (doc == NULL) {
            json_object_adopt(root, "base", error);
            return;
        }
        sweep->base = json_incref(json_doc_root(doc));
        g_free(sweep->base_dir);
        sweep->base_dir = g_path_get_dirname(path);
    }
    if (!json_is_object(sweep->base)) {
        json_object_fail(root, "base", "missing or no plan; give a plan object, or the path of a plan");
    }
}

/* ---- axes ---- */

static void add_field(Reader *reader, JsonObject *object, const char *path, guint place)
{
    GError *error = NULL;
    SweepField field = {g_strdup(path), reader->sweep->axes->len, place};
    for (guint i = 0; i < reader->sweep->fields->len; i++) {
        const char *other = g_array_index(reader->sweep->fields, SweepField, i).path;
        size_t a = strlen(path), b = strlen(other);
        gboolean inside = strncmp(path, other, MIN(a, b)) == 0 && (a == b || (a < b ? other[a] : path[b]) == '.');
        gboolean model_by_name = (strcmp(path, "model") == 0 || strcmp(other, "model") == 0) && a != b;
        if (a == b && inside) {
            json_object_fail(object, path, "%s is swept twice; keep one of them", path);
        } else if (inside && !model_by_name) {
            json_object_fail(object, path, "%s and %s set the same field; keep one of them", path, other);
        }
    }
    if (!sweep_check_field(path, reader->schema, &error)) {
        json_object_adopt(object, path, error);
    }
    g_array_append_val(reader->sweep->fields, field);
}

/* values: [value][field]; taken. */
static void add_axis(Reader *reader, guint first_field, json_t *values)
{
    SweepAxis axis = {first_field, reader->sweep->fields->len - first_field, values, (int64_t)json_array_size(values)};
    g_array_append_val(reader->sweep->axes, axis);
}

/* VALUES of a key as an array, new reference, or NULL and a mistake in the object. */
static json_t *read_values(Reader *reader, JsonObject *object, const char *key)
{
    GError *error = NULL;
    json_t *raw = json_object_raw(object, key);
    json_t *values = raw != NULL ? sweep_values_expand(raw, reader->names, reader->sweep->base, &error) : NULL;
    if (values == NULL && error != NULL) {
        json_object_adopt(object, key, error);
    } else if (values == NULL) {
        json_object_fail(object, key, "has no values");
    }
    return values;
}

static void read_grid(Reader *reader, JsonObject *root)
{
    JsonObject *grid = json_object_child(root, "grid");
    const char *key;
    for (size_t i = 0; grid != NULL && (key = json_object_key(grid, i)) != NULL; i++) {
        g_autoptr(json_t) values = read_values(reader, grid, key);
        if (values == NULL) {
            break;
        }
        guint first = reader->sweep->fields->len;
        add_field(reader, grid, key, 0);
        json_t *rows = json_array();
        for (size_t k = 0; k < json_array_size(values); k++) {
            json_t *row = json_array();
            json_array_append(row, json_array_get(values, k));
            json_array_append_new(rows, row);
        }
        add_axis(reader, first, rows);
    }
    json_object_end(grid);
}

/* One object of linked: its lists side by side. */
static void read_linked_item(Reader *reader, JsonObject *item)
{
    guint first = reader->sweep->fields->len;
    g_autoptr(json_t) rows = json_array();
    const char *key, *first_key = json_object_key(item, 0);
    for (size_t i = 0; (key = json_object_key(item, i)) != NULL; i++) {
        g_autoptr(json_t) values = read_values(reader, item, key);
        if (values == NULL) {
            return;
        }
        if (i > 0 && json_array_size(values) != json_array_size(rows)) {
            json_object_fail(item, key, "has %d values where %s has %d; linked fields have one for each other's",
                             (int)json_array_size(values), first_key, (int)json_array_size(rows));
            return;
        }
        add_field(reader, item, key, (guint)i);
        for (size_t k = 0; k < json_array_size(values); k++) {
            if (i == 0) {
                json_array_append_new(rows, json_array());
            }
            json_array_append(json_array_get(rows, k), json_array_get(values, k));
        }
    }
    if (json_array_size(rows) == 0) {
        json_object_fail(item, NULL, "names no field");
        return;
    }
    add_axis(reader, first, json_incref(rows));
}

static void read_linked(Reader *reader, JsonObject *root)
{
    size_t n = json_object_length(root, "linked");
    for (size_t i = 0; i < n && json_object_ok(root); i++) {
        JsonObject *item = json_object_item(root, "linked", i);
        if (item != NULL) {
            read_linked_item(reader, item);
            json_object_end(item);
        }
    }
}

/* The fields of all points, in the order in which they are first named. */
static void read_list_fields(Reader *reader, JsonObject *root, guint first)
{
    size_t n = json_object_length(root, "list");
    for (size_t i = 0; i < n && json_object_ok(root); i++) {
        JsonObject *item = json_object_item(root, "list", i);
        const char *key;
        for (size_t k = 0; item != NULL && (key = json_object_key(item, k)) != NULL; k++) {
            gboolean known = FALSE;
            for (guint f = first; f < reader->sweep->fields->len; f++) {
                known = known || strcmp(g_array_index(reader->sweep->fields, SweepField, f).path, key) == 0;
            }
            if (!known) {
                add_field(reader, item, key, reader->sweep->fields->len - first);
            }
            (void)json_object_raw(item, key);
        }
        json_object_end(item);
    }
}

static void read_list(Reader *reader, JsonObject *root)
{
    guint first = reader->sweep->fields->len;
    json_t *list = json_object_raw(root, "list");
    if (list == NULL || json_is_null(list)) {
        return;
    }
    read_list_fields(reader, root, first);
    if (!json_object_ok(root)) {
        return;
    }
    if (reader->sweep->fields->len == first) {
        json_object_fail(root, "list", "names no field");
        return;
    }
    json_t *rows = json_array();
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *row = json_array();
        for (guint f = first; f < reader->sweep->fields->len; f++) {
            json_t *value = json_object_get(json_array_get(list, i), g_array_index(reader->sweep->fields, SweepField, f).path);
            json_array_append_new(row, value != NULL ? json_incref(value) : json_null());
        }
        json_array_append_new(rows, row);
    }
    add_axis(reader, first, rows);
}

/* ---- constraints ---- */

static void read_constraints(Reader *reader, JsonObject *root)
{
    json_t *list = json_object_raw(root, "constraints");
    if (list != NULL && !json_is_array(list) && !json_is_null(list)) {
        json_object_fail(root, "constraints", "expected a list of conditions in quotes");
        return;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        GError *error = NULL;
        if (text == NULL) {
            json_object_fail(root, "constraints", "entry %d is no condition in quotes", (int)i + 1);
            return;
        }
        Expression *expression = expression_parse(text, &error);
        if (expression != NULL) {
            g_ptr_array_add(reader->sweep->constraints, expression);
        }
        if (expression == NULL || !sweep_names_check(expression, reader->schema, &error)) {
            json_object_fail(root, "constraints", "\"%s\": %s", text, error->message);
            g_error_free(error);
            return;
        }
    }
}

static void read_axes(Reader *reader, JsonObject *root)
{
    read_grid(reader, root);
    read_linked(reader, root);
    read_list(reader, root);
    read_constraints(reader, root);
}

/* ---- presets ---- */

#define PRESET_FOLDER "/moesim/sweeps/"

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char **sweep_preset_names(void)
{
    char **names =
        g_resource_enumerate_children(sweep_presets_get_resource(), PRESET_FOLDER, G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);
    g_assert(names != NULL);
    for (char **name = names; *name != NULL; name++) {
        (*name)[strlen(*name) - strlen(".json")] = '\0';
    }
    qsort(names, g_strv_length(names), sizeof *names, compare_names);
    return names;
}

static void read_preset(Reader *reader, JsonObject *root, const char *name)
{
    g_autofree char *path = g_strconcat(PRESET_FOLDER, name, ".json", NULL);
    g_autoptr(GBytes) bytes = g_resource_lookup_data(sweep_presets_get_resource(), path, G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);
    if (bytes == NULL) {
        g_auto(GStrv) names = sweep_preset_names();
        g_autofree char *known = g_strjoinv(", ", names);
        const char *near = error_nearest_name(name, (const char *const *)names, g_strv_length(names));
        json_object_fail(root, "presets", "\"%s\" is none of %s%s%s%s", name, known, near != NULL ? "; did you mean \"" : "",
                         near != NULL ? near : "", near != NULL ? "\"?" : "");
        return;
    }
    GError *error = NULL;
    g_autoptr(JsonDoc) doc = json_doc_parse(g_bytes_get_data(bytes, NULL), name, FALSE, &error);
    JsonObject *preset = doc != NULL ? json_doc_open(doc, &error) : NULL;
    if (preset != NULL) {
        (void)json_object_string(preset, "_note", NULL);
        read_axes(reader, preset);
        (void)json_object_close(preset, FALSE, &error);
    }
    if (error != NULL) {
        json_object_fail(root, "presets", "\"%s\" does not suit this sweep: %s", name, error->message);
        g_error_free(error);
    }
}

static void read_presets(Reader *reader, JsonObject *root)
{
    json_t *value = json_object_raw(root, "presets");
    size_t n = json_is_array(value) ? json_array_size(value) : value != NULL && !json_is_null(value) ? 1 : 0;
    for (size_t i = 0; i < n && json_object_ok(root); i++) {
        const char *name = json_string_value(json_is_array(value) ? json_array_get(value, i) : value);
        if (name == NULL) {
            json_object_fail(root, "presets", "expected names of presets");
            return;
        }
        read_preset(reader, root, name);
    }
}

/* ---- goals ---- */

/* Rates and utilisations are better when higher, times and sizes when lower. */
static gboolean higher_is_better(const char *path)
{
    static const char *const higher[] = {"tokens_per_s", "useful_tokens_per_s", "tflops_per_gpu", "mfu", "hfu"};
    for (size_t i = 0; i < G_N_ELEMENTS(higher); i++) {
        if (g_str_has_prefix(path, higher[i])) {
            return TRUE;
        }
    }
    return FALSE;
}

/* "path", {"maximize": path} or {"minimize": path}. */
static gboolean read_goal(json_t *value, SweepGoal *ret_goal)
{
    json_t *up = json_object_get(value, "maximize"), *down = json_object_get(value, "minimize");
    json_t *path = json_is_object(value) ? (up != NULL ? up : down) : value;
    if (!json_is_string(path) || (json_is_object(value) && json_object_size(value) != 1)) {
        return FALSE;
    }
    ret_goal->path = g_strdup(json_string_value(path));
    ret_goal->maximize = up != NULL || (down == NULL && higher_is_better(ret_goal->path));
    return TRUE;
}

static void add_goal(Sweep *sweep, const char *path)
{
    SweepGoal goal = {g_strdup(path), higher_is_better(path)};
    g_array_append_val(sweep->pareto, goal);
}

static void read_goals(Sweep *sweep, JsonObject *root)
{
    static const char wanted[] = "a result path, {\"maximize\": path} or {\"minimize\": path}";
    json_t *objective = json_object_raw(root, "objective"), *pareto = json_object_raw(root, "pareto");
    if (objective == NULL) {
        sweep->objective = (SweepGoal){g_strdup("tokens_per_s_per_gpu"), TRUE};
    } else if (!read_goal(objective, &sweep->objective)) {
        json_object_fail(root, "objective", "expected %s", wanted);
        return;
    }
    if (pareto == NULL) {
        SweepGoal first = {g_strdup(sweep->objective.path), sweep->objective.maximize};
        g_array_append_val(sweep->pareto, first);
        if (strcmp(sweep->objective.path, "peak_memory_bytes") != 0) {
            add_goal(sweep, "peak_memory_bytes");
        }
    }
    for (size_t i = 0; i < json_array_size(pareto); i++) {
        SweepGoal goal;
        if (!read_goal(json_array_get(pareto, i), &goal)) {
            json_object_fail(root, "pareto", "entry %d: expected %s", (int)i + 1, wanted);
            return;
        }
        g_array_append_val(sweep->pareto, goal);
    }
    if (pareto != NULL && json_array_size(pareto) < 2) {
        json_object_fail(root, "pareto", "expected a list of two or more result paths");
    }
    sweep->top = json_object_int(root, "top", 0, TOP_MAX, TOP);
}

static void read_columns(Sweep *sweep, JsonObject *root)
{
    json_t *list = json_object_raw(root, "columns");
    if (list != NULL && !json_is_array(list)) {
        json_object_fail(root, "columns", "expected a list of result paths");
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *path = json_string_value(json_array_get(list, i));
        if (path == NULL) {
            json_object_fail(root, "columns", "entry %d is no result path", (int)i + 1);
            return;
        }
        g_ptr_array_add(sweep->columns, g_strdup(path));
    }
}

/* ---- whole files ---- */

static void count_points(Sweep *sweep, JsonObject *root)
{
    sweep->n_points = 1;
    if (sweep->axes->len == 0) {
        json_object_fail(root, NULL, "sweeps over nothing; give grid, linked, list or presets");
    }
    for (guint a = 0; a < sweep->axes->len; a++) {
        const SweepAxis *axis = &g_array_index(sweep->axes, SweepAxis, a);
        if (!quantity_mul(sweep->n_points, axis->n_values, &sweep->n_points)) {
            json_object_fail(root, "grid", "has more than 2^63 combinations");
            return;
        }
    }
}

static void read_all(Reader *reader, JsonObject *root)
{
    (void)json_object_string(root, "$schema", NULL);
    (void)json_object_string(root, "_note", NULL);
    read_base(reader, root);
    if (json_object_ok(root)) {
        read_presets(reader, root);
        read_axes(reader, root);
        read_goals(reader->sweep, root);
        read_columns(reader->sweep, root);
        json_object_refuse_unknown(root);
        count_points(reader->sweep, root);
    }
}

static void clear_field(void *field)
{
    g_free(((SweepField *)field)->path);
}

static void clear_axis(void *axis)
{
    json_decref(((SweepAxis *)axis)->values);
}

static void clear_goal(void *goal)
{
    g_free(((SweepGoal *)goal)->path);
}

/* Takes the document over. */
static Sweep *sweep_new(JsonDoc *doc, json_t *plan_schema)
{
    Sweep *sweep = g_new0(Sweep, 1);
    const char *name = json_doc_name(doc);
    sweep->doc = doc;
    sweep->name = g_strdup(name);
    sweep->dir = g_path_get_dirname(name);
    sweep->defaults = schema_defaults(plan_schema);
    sweep->fields = g_array_new(FALSE, TRUE, sizeof(SweepField));
    sweep->axes = g_array_new(FALSE, TRUE, sizeof(SweepAxis));
    sweep->constraints = g_ptr_array_new_with_free_func((GDestroyNotify)expression_free);
    sweep->pareto = g_array_new(FALSE, TRUE, sizeof(SweepGoal));
    sweep->columns = g_ptr_array_new_with_free_func(g_free);
    g_array_set_clear_func(sweep->fields, clear_field);
    g_array_set_clear_func(sweep->axes, clear_axis);
    g_array_set_clear_func(sweep->pareto, clear_goal);
    return sweep;
}

/* Takes the document over; NULL stays NULL. */
static Sweep *sweep_from_doc(JsonDoc *doc, json_t *plan_schema, GError **error)
{
    if (doc == NULL) {
        return NULL;
    }
    g_autoptr(Sweep) sweep = sweep_new(doc, plan_schema);
    g_autoptr(Session) session = session_new();
    g_autoptr(SweepNames) names = sweep_names_new(sweep, session);
    Reader reader = {sweep, plan_schema, names};
    JsonObject *root = json_doc_open(doc, error);
    if (root == NULL) {
        return NULL;
    }
    read_all(&reader, root);
    return json_object_close(root, FALSE, error) ? g_steal_pointer(&sweep) : NULL;
}

Sweep *sweep_load(const char *path, json_t *plan_schema, GError **error)
{
    return sweep_from_doc(json_doc_load(path, FALSE, error), plan_schema, error);
}

Sweep *sweep_parse(const char *text, const char *name, json_t *plan_schema, GError **error)
{
    return sweep_from_doc(json_doc_parse(text, name, FALSE, error), plan_schema, error);
}
