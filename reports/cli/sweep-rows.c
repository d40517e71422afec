#include "reports/cli/sweep-rows.h"

#include <math.h>
#include <string.h>

#include "reports/out/csv.h"
#include "reports/out/jsonl.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"
#include "workloads/lower/program.h"

/* Members of results that rows do not take as they are: times by operator are further columns, warnings share a cell. */
static const char operators_key[] = "by_operator", operators_path[] = "time.by_operator.", warnings_key[] = "warnings";

typedef struct Column {
    char *name;
    const char *key; /* of a member of results: the end of the name; NULL for fields, status, reason */
    int depth;       /* of objects that it lies in */
    TableKind kind;
} Column;

struct SweepLayout {
    const Sweep *sweep;
    RowFormat format;
    GArray *columns; /* Column: fields, results, status, reason */
    guint n_fields;
    guint first_further, end_further; /* columns of operators' times */
    char *header;
};

static void clear_column(void *data)
{
    Column *column = data;
    g_free(column->name);
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

static void add_column(SweepLayout *layout, const char *name, TableKind kind)
{
    Column column = {.name = g_strdup(name), .kind = kind};
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

/* Who is told an empty result: its scalars become columns, and its warnings. */
typedef struct ColumnSink {
    SweepLayout *layout;
    GString *path; /* of the object that is open, with a dot behind it */
    int depth;
} ColumnSink;

static void add_result(ColumnSink *sink, const char *key, TableKind kind)
{
    g_autofree char *path = g_strconcat(sink->path->str, key, NULL);
    add_column(sink->layout, path, kind);
    Column *column = &g_array_index(sink->layout->columns, Column, sink->layout->columns->len - 1);
    column->key = column->name + sink->path->len;
    column->depth = sink->depth;
}

static gboolean columns_begin(void *self, const char *key, gboolean is_list)
{
    ColumnSink *sink = self;
    if (is_list) {
        if (strcmp(key, warnings_key) == 0) {
            add_result(sink, key, TABLE_TEXT);
        }
        return FALSE;
    }
    g_string_append_printf(sink->path, "%s.", key);
    sink->depth++;
    return TRUE;
}

static void columns_end(void *self)
{
    ColumnSink *sink = self;
    g_string_truncate(sink->path, sink->path->len - 1);
    const char *dot = strrchr(sink->path->str, '.');
    g_string_truncate(sink->path, dot != NULL ? (gsize)(dot - sink->path->str) + 1 : 0);
    sink->depth--;
}

static void columns_number(void *self, const char *key, double value)
{
    (void)value;
    add_result(self, key, TABLE_NUMBER);
}

static void columns_integer(void *self, const char *key, int64_t value)
{
    (void)value;
    add_result(self, key, TABLE_INTEGER);
}

static void columns_truth(void *self, const char *key, gboolean value)
{
    (void)value;
    add_result(self, key, TABLE_TRUTH);
}

static void columns_text(void *self, const char *key, const char *value)
{
    (void)value;
    if (((ColumnSink *)self)->depth > 0 || strcmp(key, "schema") != 0) {
        add_result(self, key, TABLE_TEXT);
    }
}

static void add_results(SweepLayout *layout)
{
    static const ResultSink sink = {columns_begin, columns_end, columns_number, columns_integer, columns_truth, columns_text};
    g_autoptr(Result) empty = result_new();
    g_autoptr(GString) path = g_string_new(NULL);
    ColumnSink columns = {layout, path, 0};
    empty->mfu = empty->hfu = 0; /* numbers, when they are known */
    result_tell(empty, &sink, &columns);
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

static gboolean fail_path(const SweepLayout *layout, const char *key, int item, const char *path, GError **error)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    for (guint i = layout->n_fields; i < layout->columns->len; i++) {
        g_ptr_array_add(names, g_array_index(layout->columns, Column, i).name);
    }
    const char *near = error_nearest_name(path, (const char *const *)(void *)names->pdata, names->len);
    if (near != NULL && strcmp(near, path) == 0) {
        sweep_fail(layout->sweep, key, item, error, "\"%s\" of a result is no number, so rows have no order by it; name one that is, such as "
                   "step_time_s", path);
        return FALSE;
    }
    sweep_fail(layout->sweep, key, item, error, "results have no number \"%s\"%s%s%s", path, near != NULL ? "; did you mean \"" : "", near != NULL ? near : "", near != NULL ? "\"?" : "");
    return FALSE;
}

/* A further column: the time of an operator. */
static gboolean add_further(SweepLayout *layout, int item, GError **error)
{
    const char *path = g_ptr_array_index(layout->sweep->columns, (guint)item);
    gboolean known = FALSE;
    for (int i = 0; g_str_has_prefix(path, operators_path) && i < N_LABELS; i++) {
        known = known || strcmp(program_label_name(i), path + strlen(operators_path)) == 0;
    }
    if (sweep_layout_find(layout, path) >= 0) {
        sweep_fail(layout->sweep, "columns", item, error, "\"%s\" is a column already; leave it out", path);
        return FALSE;
    }
    if (!known) {
        return fail_path(layout, "columns", item, path, error);
    }
    add_column(layout, path, TABLE_NUMBER);
    Column *column = &g_array_index(layout->columns, Column, layout->columns->len - 1);
    column->key = column->name + strlen(operators_path);
    return TRUE;
}

static gboolean check_goal(const SweepLayout *layout, const char *key, int item, const char *path, GError **error)
{
    int column = sweep_layout_find(layout, path);
    gboolean is_number = column >= (int)layout->n_fields &&
                         g_array_index(layout->columns, Column, (guint)column).kind <= TABLE_NUMBER &&
                         g_array_index(layout->columns, Column, (guint)column).kind != TABLE_TEXT;
    return is_number || fail_path(layout, key, item, path, error);
}

static gboolean check_goals(const SweepLayout *layout, GError **error)
{
    if (!check_goal(layout, "objective", -1, layout->sweep->objective.path, error)) {
        return FALSE;
    }
    for (guint i = 0; i < layout->sweep->pareto->len; i++) {
        if (!check_goal(layout, "pareto", (int)i, g_array_index(layout->sweep->pareto, SweepGoal, i).path, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean add_columns(SweepLayout *layout, GError **error)
{
    const Sweep *sweep = layout->sweep;
    for (guint i = 0; i < sweep->fields->len; i++) {
        add_column(layout, g_array_index(sweep->fields, SweepField, i).path, field_kind(sweep, i));
    }
    layout->n_fields = layout->columns->len;
    add_results(layout);
    layout->first_further = layout->columns->len;
    for (guint i = 0; i < sweep->columns->len; i++) {
        if (!add_further(layout, (int)i, error)) {
            return FALSE;
        }
    }
    layout->end_further = layout->columns->len;
    add_column(layout, "status", TABLE_TEXT);
    add_column(layout, "reason", TABLE_TEXT);
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

/* Who is told a point's result: each scalar goes to the column that comes next, if it is that one's. */
typedef struct RowSink {
    const SweepLayout *layout;
    Table *table;
    guint next; /* column */
    int depth;
    gboolean in_operators, in_warnings;
    GString *warnings;
} RowSink;

/* The column of a member, −1: none, it is only in some results. */
static int column_of(RowSink *sink, const char *key)
{
    const SweepLayout *layout = sink->layout;
    if (sink->in_operators) {
        for (guint i = layout->first_further; i < layout->end_further; i++) {
            if (strcmp(g_array_index(layout->columns, Column, i).key, key) == 0) {
                return (int)i;
            }
        }
        return -1;
    }
    const Column *column = &g_array_index(layout->columns, Column, sink->next);
    gboolean is_next = sink->next < layout->first_further && column->depth == sink->depth && strcmp(column->key, key) == 0;
    return is_next ? (int)sink->next++ : -1;
}

static gboolean row_begin(void *self, const char *key, gboolean is_list)
{
    RowSink *sink = self;
    gboolean is_operators = strcmp(key, operators_key) == 0;
    sink->in_warnings = is_list && strcmp(key, warnings_key) == 0;
    if ((is_list && !sink->in_warnings) || (is_operators && sink->layout->first_further == sink->layout->end_further)) {
        return FALSE;
    }
    sink->in_operators = is_operators;
    sink->depth++;
    return TRUE;
}

static void row_end(void *self)
{
    RowSink *sink = self;
    sink->depth--;
    sink->in_operators = FALSE;
    if (sink->in_warnings) {
        int column = column_of(sink, warnings_key);
        sink->in_warnings = FALSE;
        if (sink->warnings != NULL) {
            table_put_text(sink->table, (size_t)column, sink->warnings->str);
        }
    }
}

static void row_number(void *self, const char *key, double value)
{
    RowSink *sink = self;
    int column = column_of(sink, key);
    if (column >= 0) {
        table_put_number(sink->table, (size_t)column, value);
    }
}

static void row_integer(void *self, const char *key, int64_t value)
{
    RowSink *sink = self;
    int column = column_of(sink, key);
    if (column >= 0) {
        table_put_integer(sink->table, (size_t)column, value);
    }
}

static void row_truth(void *self, const char *key, gboolean value)
{
    RowSink *sink = self;
    int column = column_of(sink, key);
    if (column >= 0) {
        table_put_truth(sink->table, (size_t)column, value);
    }
}

/* Warnings stand in one cell; a text that is unknown, or a number, leaves its cell empty. */
static void row_text(void *self, const char *key, const char *value)
{
    RowSink *sink = self;
    if (sink->in_warnings) {
        sink->warnings = sink->warnings != NULL ? g_string_append(sink->warnings, "; ") : g_string_new(NULL);
        g_string_append(sink->warnings, value);
        return;
    }
    int column = column_of(sink, key);
    if (column >= 0 && value != NULL) {
        table_put_text(sink->table, (size_t)column, value);
    }
}

static void put_result(const SweepLayout *layout, Table *table, const Result *result)
{
    static const ResultSink sink = {row_begin, row_end, row_number, row_integer, row_truth, row_text};
    RowSink row = {.layout = layout, .table = table, .next = layout->n_fields};
    result_tell(result, &sink, &row);
    g_assert(row.next == layout->first_further);
    if (row.warnings != NULL) {
        g_string_free(row.warnings, TRUE);
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
        put_result(layout, table, outcome->result);
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
