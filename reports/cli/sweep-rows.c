#include "reports/cli/sweep-rows.h"

#include <math.h>
#include <string.h>

#include "reports/out/csv.h"
#include "reports/out/jsonl.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"
#include "workloads/lower/program.h"

typedef struct Column {
    char *name;
    char **keys; /* of a result path; NULL for fields, status, reason */
    TableKind kind;
} Column;

struct SweepLayout {
    const Sweep *sweep;
    RowFormat format;
    GArray *columns; /* Column: fields, results, status, reason */
    guint n_fields;
    char *header;
};

static void clear_column(void *data)
{
    Column *column = data;
    g_free(column->name);
    g_strfreev(column->keys);
}

void sweep_layout_free(SweepLayout *layout)
{
    if (layout != NULL) {
        g_array_unref(layout->columns);
        g_free(layout->header);
        g_free(layout);
    }
}

/* ---- columns ---- */

static void add_column(SweepLayout *layout, const char *name, gboolean is_result, TableKind kind)
{
    Column column = {g_strdup(name), is_result ? g_strsplit(name, ".", -1) : NULL, kind};
    g_array_append_val(layout->columns, column);
}

/* Whole numbers, numbers or truth values when all values are, text otherwise. */
static TableKind field_kind(const Sweep *sweep, guint field_idx)
{
    const SweepField *field = &g_array_index(sweep->fields, SweepField, field_idx);
    const SweepAxis *axis = &g_array_index(sweep->axes, SweepAxis, field->axis);
    gboolean all_whole = TRUE, all_numbers = TRUE, all_truths = TRUE;
    for (int64_t i = 0; i < axis->n_values; i++) {
        json_t *value = json_array_get(json_array_get(axis->values, (size_t)i), field->place);
        all_whole = all_whole && (json_is_integer(value) || json_is_null(value));
        all_numbers = all_numbers && (json_is_number(value) || json_is_null(value));
        all_truths = all_truths && (json_is_boolean(value) || json_is_null(value));
    }
    return all_whole ? TABLE_INTEGER : all_numbers ? TABLE_NUMBER : all_truths ? TABLE_TRUTH : TABLE_TEXT;
}

static TableKind result_kind(json_t *value)
{
    return json_is_integer(value)   ? TABLE_INTEGER
           : json_is_real(value)    ? TABLE_NUMBER
           : json_is_boolean(value) ? TABLE_TRUTH
                                    : TABLE_TEXT;
}

/* The scalars of a result, flattened: an empty result has them all. */
static void add_results(SweepLayout *layout, json_t *object, const char *prefix)
{
    const char *key;
    json_t *value;
    json_object_foreach (object, key, value) {
        g_autofree char *path = g_strconcat(prefix, prefix[0] != '\0' ? "." : "", key, NULL);
        if (json_is_object(value)) {
            add_results(layout, value, path);
        } else if (strcmp(path, "warnings") == 0) {
            add_column(layout, path, TRUE, TABLE_TEXT);
        } else if (!json_is_array(value) && strcmp(path, "schema") != 0) {
            add_column(layout, path, TRUE, result_kind(value));
        }
    }
}

int sweep_layout_find(const SweepLayout *layout, const char *name)
{
    for (guint i = 0; i < layout->columns->len; i++) {
        if (strcmp(g_array_index(layout->columns, Column, i).name, name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static gboolean fail_path(const SweepLayout *layout, const char *key, const char *path, GError **error)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    for (guint i = layout->n_fields; i < layout->columns->len; i++) {
        g_ptr_array_add(names, g_array_index(layout->columns, Column, i).name);
    }
    const char *near = error_nearest_name(path, (const char *const *)(void *)names->pdata, names->len);
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: %s: results have no number \"%s\"%s%s%s", layout->sweep->name,
                key, path, near != NULL ? "; did you mean \"" : "", near != NULL ? near : "", near != NULL ? "\"?" : "");
    return FALSE;
}

/* A further column: the time of an operator. */
static gboolean add_further(SweepLayout *layout, const char *path, GError **error)
{
    static const char prefix[] = "time.by_operator.";
    gboolean known = FALSE;
    for (int i = 0; g_str_has_prefix(path, prefix) && i < N_LABELS; i++) {
        known = known || strcmp(program_label_name(i), path + strlen(prefix)) == 0;
    }
    if (sweep_layout_find(layout, path) >= 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: columns: \"%s\" is a column already; leave it out",
                    layout->sweep->name, path);
        return FALSE;
    }
    if (!known) {
        return fail_path(layout, "columns", path, error);
    }
    add_column(layout, path, TRUE, TABLE_NUMBER);
    return TRUE;
}

static gboolean check_goal(const SweepLayout *layout, const char *key, const char *path, GError **error)
{
    int column = sweep_layout_find(layout, path);
    gboolean is_number = column >= (int)layout->n_fields &&
                         g_array_index(layout->columns, Column, (guint)column).kind <= TABLE_NUMBER &&
                         g_array_index(layout->columns, Column, (guint)column).kind != TABLE_TEXT;
    return is_number || fail_path(layout, key, path, error);
}

static gboolean check_goals(const SweepLayout *layout, GError **error)
{
    if (!check_goal(layout, "objective", layout->sweep->objective.path, error)) {
        return FALSE;
    }
    for (guint i = 0; i < layout->sweep->pareto->len; i++) {
        if (!check_goal(layout, "pareto", g_array_index(layout->sweep->pareto, SweepGoal, i).path, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean add_columns(SweepLayout *layout, GError **error)
{
    const Sweep *sweep = layout->sweep;
    for (guint i = 0; i < sweep->fields->len; i++) {
        add_column(layout, g_array_index(sweep->fields, SweepField, i).path, FALSE, field_kind(sweep, i));
    }
    layout->n_fields = layout->columns->len;
    g_autoptr(Result) empty = result_new();
    empty->mfu = empty->hfu = 0; /* numbers, when they are known */
    g_autoptr(json_t) object = result_to_json(empty);
    add_results(layout, object, "");
    for (guint i = 0; i < sweep->columns->len; i++) {
        if (!add_further(layout, g_ptr_array_index(sweep->columns, i), error)) {
            return FALSE;
        }
    }
    add_column(layout, "status", FALSE, TABLE_TEXT);
    add_column(layout, "reason", FALSE, TABLE_TEXT);
    return check_goals(layout, error);
}

Table *sweep_layout_table(const SweepLayout *layout)
{
    Table *table = table_new();
    for (guint i = 0; i < layout->columns->len; i++) {
        const Column *column = &g_array_index(layout->columns, Column, i);
        table_add_column(table, column->name, column->kind, TABLE_PLAIN);
    }
    return table;
}

SweepLayout *sweep_layout_new(const Sweep *sweep, RowFormat format, GError **error)
{
    g_autoptr(SweepLayout) layout = g_new0(SweepLayout, 1);
    layout->sweep = sweep;
    layout->format = format;
    layout->columns = g_array_new(FALSE, FALSE, sizeof(Column));
    g_array_set_clear_func(layout->columns, clear_column);
    if (!add_columns(layout, error)) {
        return NULL;
    }
    g_autoptr(Table) table = sweep_layout_table(layout);
    g_autoptr(GString) header = g_string_new(NULL);
    if (format == ROW_CSV) {
        csv_append_header(header, table);
    }
    layout->header = g_strdup(header->str);
    return g_steal_pointer(&layout);
}

RowFormat sweep_layout_format(const SweepLayout *layout)
{
    return layout->format;
}

size_t sweep_layout_n_columns(const SweepLayout *layout)
{
    return layout->columns->len;
}

const char *sweep_layout_header(const SweepLayout *layout)
{
    return layout->header;
}

/* ---- rows ---- */

static void put_value(const SweepLayout *layout, Table *table, guint field, json_t *value)
{
    const Column *column = &g_array_index(layout->columns, Column, field);
    if (json_is_null(value)) {
        return;
    }
    if (column->kind == TABLE_INTEGER) {
        table_put_integer(table, field, json_integer_value(value));
    } else if (column->kind == TABLE_NUMBER) {
        table_put_number(table, field, json_number_value(value));
    } else if (column->kind == TABLE_TRUTH) {
        table_put_truth(table, field, json_is_true(value));
    } else {
        g_autofree char *cell = sweep_cell(column->name, value);
        table_put_text(table, field, cell);
    }
}

/* Texts of a list in one cell. */
static void put_list(Table *table, guint idx, json_t *list)
{
    g_autoptr(GString) text = g_string_new(NULL);
    for (size_t i = 0; i < json_array_size(list); i++) {
        g_string_append_printf(text, "%s%s", i > 0 ? "; " : "", json_string_value(json_array_get(list, i)));
    }
    if (text->len > 0) {
        table_put_text(table, idx, text->str);
    }
}

static void put_result(Table *table, guint idx, const Column *column, json_t *result)
{
    json_t *value = result;
    for (char **key = column->keys; *key != NULL; key++) {
        value = json_object_get(value, *key);
    }
    if (json_is_array(value)) {
        put_list(table, idx, value);
    } else if (column->kind == TABLE_INTEGER && json_is_integer(value)) {
        table_put_integer(table, idx, json_integer_value(value));
    } else if (column->kind == TABLE_NUMBER && json_is_number(value)) {
        table_put_number(table, idx, json_number_value(value));
    } else if (column->kind == TABLE_TRUTH && json_is_boolean(value)) {
        table_put_truth(table, idx, json_is_true(value));
    } else if (json_is_string(value)) {
        table_put_text(table, idx, json_string_value(value));
    }
}

static void append_fields(const SweepLayout *layout, const Table *table, GString *out)
{
    if (layout->format == ROW_CSV) {
        csv_append_cells(out, table, 0, 0, layout->n_fields);
        g_string_append_c(out, ',');
    } else {
        g_string_append_c(out, '{');
        jsonl_append_members(out, table, 0, 0, layout->n_fields);
        g_string_append(out, ", ");
    }
}

static void put_fields(const SweepLayout *layout, Table *table, int64_t point)
{
    table_clear_rows(table);
    table_add_row(table);
    for (guint i = 0; i < layout->n_fields; i++) {
        put_value(layout, table, i, sweep_value(layout->sweep, point, i));
    }
}

char *sweep_layout_cell(const SweepLayout *layout, guint field, int64_t value_idx)
{
    const SweepField *place = &g_array_index(layout->sweep->fields, SweepField, field);
    const SweepAxis *axis = &g_array_index(layout->sweep->axes, SweepAxis, place->axis);
    g_autoptr(Table) table = sweep_layout_table(layout);
    g_autoptr(GString) row = g_string_new("{");
    table_add_row(table);
    put_value(layout, table, field, json_array_get(json_array_get(axis->values, (size_t)value_idx), place->place));
    if (layout->format == ROW_CSV) {
        g_string_truncate(row, 0);
        csv_append_cells(row, table, 0, field, field + 1);
    } else {
        jsonl_append_members(row, table, 0, field, field + 1);
        g_string_append_c(row, '}');
    }
    g_string_append_c(row, '\n');
    g_autoptr(GPtrArray) cells = row_cells(layout->format, row->str, row->len);
    return g_strdup(cells->len > 0 ? g_ptr_array_index(cells, 0) : "");
}

void sweep_layout_append_start(const SweepLayout *layout, Table *table, int64_t point, GString *out)
{
    put_fields(layout, table, point);
    append_fields(layout, table, out);
}

void sweep_layout_append_row(const SweepLayout *layout, Table *table, int64_t point, const SweepOutcome *outcome,
                             GString *out)
{
    guint n = layout->columns->len;
    put_fields(layout, table, point);
    if (outcome->result != NULL) {
        g_autoptr(json_t) result = result_to_json(outcome->result);
        for (guint i = layout->n_fields; i < n - 2; i++) {
            put_result(table, i, &g_array_index(layout->columns, Column, i), result);
        }
    }
    table_put_text(table, n - 2, sweep_status_name(outcome->status));
    if (outcome->reason != NULL) {
        table_put_text(table, n - 1, outcome->reason);
    }
    append_fields(layout, table, out);
    if (layout->format == ROW_CSV) {
        csv_append_cells(out, table, 0, layout->n_fields, n);
        g_string_append_c(out, '\n');
    } else {
        jsonl_append_members(out, table, 0, layout->n_fields, n);
        g_string_append(out, "}\n");
    }
}
