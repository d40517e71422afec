#include "reports/cli/sweep-report.h"

#include <math.h>
#include <string.h>

#include "reports/cli/sweep-front.h"
#include "reports/out/text.h"
#include "sim/base/error.h"

enum { WIDTH = 100, LABEL = 12, FRONT_SHOWN = 40 };

typedef struct Report {
    const Sweep *sweep;
    const SweepLayout *layout;
    const char *path;
    SweepCounts *counts;
    SweepFront *front;
    GHashTable *turned; /* fields of the rows that differ from the best in one axis → SweepRow, once it is found */
} Report;

/* ---- reading ---- */

typedef gboolean (*RowVisit)(Report *report, GPtrArray *cells, GError **error);

static gboolean visit_rows(Report *report, RowVisit visit, GError **error)
{
    g_autoptr(RowReader) reader = row_reader_open(report->path, sweep_layout_format(report->layout), error);
    const char *row;
    size_t length;
    gboolean is_header = sweep_layout_format(report->layout) == ROW_CSV;
    if (reader == NULL) {
        return FALSE;
    }
    while (row_reader_next(reader, &row, &length, error)) {
        if (row == NULL) {
            return TRUE;
        }
        g_autoptr(GPtrArray) cells = row_cells(sweep_layout_format(report->layout), row, length);
        if (cells == NULL || cells->len != sweep_layout_n_columns(report->layout)) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: byte %" G_GINT64_FORMAT ": no row of this sweep ends here",
                        report->path, row_reader_end(reader));
            return FALSE;
        }
        if (!is_header && !visit(report, cells, error)) {
            return FALSE;
        }
        is_header = FALSE;
    }
    return FALSE;
}

static SweepStatus status_of(const GPtrArray *cells)
{
    const char *name = g_ptr_array_index(cells, cells->len - 2);
    for (int status = 0; status < N_SWEEP_STATUSES; status++) {
        if (strcmp(name, sweep_status_name((SweepStatus)status)) == 0) {
            return (SweepStatus)status;
        }
    }
    return SWEEP_INVALID;
}

static gboolean rank_row(Report *report, GPtrArray *cells, GError **error)
{
    (void)error;
    SweepStatus status = status_of(cells);
    SweepCounts *counts = report->counts;
    counts->rows++;
    counts->by_status[status]++;
    if (status == SWEEP_INVALID && counts->first_reason == NULL) {
        counts->first_reason = g_strdup(g_ptr_array_index(cells, cells->len - 1));
    }
    if (status == SWEEP_OK) {
        sweep_front_add(report->front, cells, counts->rows);
    }
    return TRUE;
}

/* ---- numbers ---- */

static double cell_number(const GPtrArray *cells, int column)
{
    const char *text = column >= 0 ? g_ptr_array_index(cells, (guint)column) : "";
    return text[0] != '\0' ? g_ascii_strtod(text, NULL) : (double)NAN;
}

static double number_at(const Report *report, const GPtrArray *cells, const char *path)
{
    return cell_number(cells, sweep_layout_find(report->layout, path));
}

static TableUnit unit_of(const char *path)
{
    return g_str_has_suffix(path, "_bytes")                                           ? TABLE_BYTES
           : g_str_has_suffix(path, "_s") && !g_str_has_suffix(path, "_per_s") ? TABLE_SECONDS
                                                                                      : TABLE_PLAIN;
}

/* ---- rows as tables ---- */

/* Columns of the swept fields, without those that have one value. Returns how many. */
static guint add_field_columns(const Report *report, Table *table, guint *ret_fields)
{
    guint n = 0;
    for (guint i = 0; i < report->sweep->fields->len; i++) {
        const SweepField *field = &g_array_index(report->sweep->fields, SweepField, i);
        if (g_array_index(report->sweep->axes, SweepAxis, field->axis).n_values > 1) {
            const char *dot = strrchr(field->path, '.');
            table_add_column(table, dot != NULL ? dot + 1 : field->path, TABLE_TEXT, TABLE_PLAIN);
            ret_fields[n++] = i;
        }
    }
    return n;
}

/* The objective, further goals, then step time and memory: each once. */
static GPtrArray *shown_results(const Sweep *sweep)
{
    GPtrArray *paths = g_ptr_array_new();
    g_ptr_array_add(paths, sweep->objective.path);
    for (guint i = 0; i < sweep->pareto->len + 2; i++) {
        const char *path = i < sweep->pareto->len    ? g_array_index(sweep->pareto, SweepGoal, i).path
                           : i == sweep->pareto->len ? "step_time_s"
                                                     : "peak_memory_bytes";
        if (!g_ptr_array_find_with_equal_func(paths, path, g_str_equal, NULL)) {
            g_ptr_array_add(paths, (void *)(guintptr)path);
        }
    }
    return paths;
}

static void append_rows(const Report *report, GString *out, const GPtrArray *rows, guint n_rows)
{
    g_autoptr(Table) table = table_new();
    g_autoptr(GPtrArray) paths = shown_results(report->sweep);
    g_autofree guint *fields = g_new(guint, report->sweep->fields->len);
    size_t first = table_add_column(table, "row", TABLE_INTEGER, TABLE_PLAIN);
    guint n_fields = add_field_columns(report, table, fields);
    for (guint i = 0; i < paths->len; i++) {
        const char *path = g_ptr_array_index(paths, i);
        table_add_column(table, path, TABLE_NUMBER, unit_of(path));
    }
    for (guint r = 0; r < n_rows; r++) {
        const SweepRow *row = g_ptr_array_index(rows, r);
        table_add_row(table);
        table_put_integer(table, first, row->number);
        for (guint i = 0; i < n_fields; i++) {
            const char *cell = g_ptr_array_index(row->cells, fields[i]);
            table_put_text(table, first + 1 + i, cell[0] != '\0' ? cell : "-");
        }
        for (guint i = 0; i < paths->len; i++) {
            table_put_number(table, first + 1 + n_fields + i, number_at(report, row->cells, g_ptr_array_index(paths, i)));
        }
    }
    text_append_table(out, table, 2);
}

/* ---- knobs ---- */

/* Whose fields a row has, as a key. */
static char *fields_key(const Report *report, const GPtrArray *cells)
{
    GString *key = g_string_new(NULL);
    for (guint i = 0; i < report->sweep->fields->len; i++) {
        g_string_append(key, g_ptr_array_index(cells, i));
        g_string_append_c(key, '\x1f');
    }
    return g_string_free(key, FALSE);
}

/* The axis in which two rows differ; −1 when in none, −2 when in several. */
static int differing_axis(const Report *report, const GPtrArray *a, const GPtrArray *b)
{
    int axis = -1;
    for (guint i = 0; i < report->sweep->fields->len; i++) {
        if (strcmp(g_ptr_array_index(a, i), g_ptr_array_index(b, i)) != 0) {
            int here = (int)g_array_index(report->sweep->fields, SweepField, i).axis;
            if (axis >= 0 && here != axis) {
                return -2;
            }
            axis = here;
        }
    }
    return axis;
}

static gboolean find_turned(Report *report, GPtrArray *cells, GError **error)
{
    (void)error; /* never */
    const SweepRow *best = sweep_front_best(report->front);
    int axis = differing_axis(report, best->cells, cells);
    if (axis >= 0) {
        SweepRow *row = g_new0(SweepRow, 1);
        row->number = axis;
        row->cells = g_ptr_array_ref(cells);
        g_hash_table_insert(report->turned, fields_key(report, cells), row);
    }
    return TRUE;
}

/* "ep 64, seq_chunk 1024" of one axis. */
static char *axis_text(const Report *report, const GPtrArray *cells, guint a)
{
    const SweepAxis *axis = &g_array_index(report->sweep->axes, SweepAxis, a);
    GString *text = g_string_new(NULL);
    for (guint i = axis->first_field; i < axis->first_field + axis->n_fields; i++) {
        const char *cell = g_ptr_array_index(cells, i);
        g_string_append_printf(text, "%s%s", i > axis->first_field ? ", " : "", cell[0] != '\0' ? cell : "default");
    }
    return g_string_free(text, FALSE);
}

static char *axis_name(const Report *report, guint a)
{
    const SweepAxis *axis = &g_array_index(report->sweep->axes, SweepAxis, a);
    GString *text = g_string_new(NULL);
    for (guint i = axis->first_field; i < axis->first_field + axis->n_fields; i++) {
        const char *path = g_array_index(report->sweep->fields, SweepField, i).path;
        g_string_append_printf(text, "%s%s", i > axis->first_field ? ", " : "", path);
    }
    return g_string_free(text, FALSE);
}

typedef struct KnobColumns {
    size_t knob, value, objective, step, wait, memory, remark;
} KnobColumns;

static void put_change(Table *table, size_t column, double value, double best)
{
    table_put_number(table, column, value - best);
}

/* One turn of a knob against the best row. */
static void put_turn(const Report *report, Table *table, const KnobColumns *at, const GPtrArray *cells)
{
    const GPtrArray *best = sweep_front_best(report->front)->cells;
    const char *path = report->sweep->objective.path;
    double objective = number_at(report, cells, path), reference = number_at(report, best, path);
    SweepStatus status = status_of(cells);
    table_put_number(table, at->objective, 100 * (objective / reference - 1));
    put_change(table, at->step, number_at(report, cells, "step_time_s"), number_at(report, best, "step_time_s"));
    put_change(table, at->wait, number_at(report, cells, "time.exposed_comm_s"), number_at(report, best, "time.exposed_comm_s"));
    put_change(table, at->memory, number_at(report, cells, "peak_memory_bytes"), number_at(report, best, "peak_memory_bytes"));
    if (status == SWEEP_OK) {
        table_put_text(table, at->remark, "");
    } else {
        g_autofree char *reason = g_strndup(g_ptr_array_index(cells, cells->len - 1), 60);
        g_autofree char *valid = g_utf8_make_valid(reason, -1);
        g_autofree char *text = g_strdup_printf("%s: %s", status == SWEEP_INVALID ? "invalid" : "does not fit", valid);
        table_put_text(table, at->remark, text);
    }
}

/* Rows of the table for one axis: its values in their order, the best row's own marked. */
static void append_knob(const Report *report, Table *table, const KnobColumns *at, guint a)
{
    const SweepAxis *axis = &g_array_index(report->sweep->axes, SweepAxis, a);
    const GPtrArray *best = sweep_front_best(report->front)->cells;
    g_autofree char *name = axis_name(report, a);
    for (int64_t v = 0; v < axis->n_values; v++) {
        g_autoptr(GPtrArray) cells = g_ptr_array_new();
        g_autoptr(GPtrArray) owned = g_ptr_array_new_with_free_func(g_free);
        for (guint i = 0; i < report->sweep->fields->len; i++) {
            g_ptr_array_add(cells, g_ptr_array_index(best, i));
        }
        for (guint i = axis->first_field; i < axis->first_field + axis->n_fields; i++) {
            char *cell = sweep_layout_cell(report->layout, i, v);
            g_ptr_array_add(owned, cell);
            cells->pdata[i] = cell;
        }
        g_autofree char *key = fields_key(report, cells), *value = axis_text(report, cells, a);
        const SweepRow *row = g_hash_table_lookup(report->turned, key);
        gboolean is_best = differing_axis(report, best, cells) == -1;
        if (row == NULL && !is_best) {
            continue; /* a constraint leaves it out */
        }
        table_add_row(table);
        table_put_text(table, at->knob, name);
        table_put_text(table, at->value, value);
        if (is_best) {
            table_put_text(table, at->remark, "the best");
        } else {
            put_turn(report, table, at, row->cells);
        }
    }
}

static void append_knobs(const Report *report, GString *out)
{
    g_autoptr(Table) table = table_new();
    KnobColumns at = {
        .knob = table_add_column(table, "knob", TABLE_TEXT, TABLE_PLAIN),
        .value = table_add_column(table, "turned to", TABLE_TEXT, TABLE_PLAIN),
        .objective = table_add_column(table, report->sweep->objective.path, TABLE_NUMBER, TABLE_PERCENT),
        .step = table_add_column(table, "step", TABLE_NUMBER, TABLE_SECONDS),
        .wait = table_add_column(table, "waiting", TABLE_NUMBER, TABLE_SECONDS),
        .memory = table_add_column(table, "memory", TABLE_NUMBER, TABLE_BYTES),
        .remark = table_add_column(table, "", TABLE_TEXT, TABLE_PLAIN),
    };
    for (guint a = 0; a < report->sweep->axes->len; a++) {
        if (g_array_index(report->sweep->axes, SweepAxis, a).n_values > 1) {
            append_knob(report, table, &at, a);
        }
    }
    if (table_n_rows(table) > 0) {
        g_string_append(out, "\nWhat each knob buys: the best row with that knob alone turned, as changes\n");
        text_append_table(out, table, 2);
    }
}

/* ---- the whole ---- */

static void append_counts(const Report *report, GString *out)
{
    const SweepCounts *counts = report->counts;
    g_autofree char *text = g_strdup_printf(
        "%s: %" G_GINT64_FORMAT " combinations, %" G_GINT64_FORMAT " rows: %" G_GINT64_FORMAT " fit, %" G_GINT64_FORMAT
        " do not fit, %" G_GINT64_FORMAT " are invalid",
        report->sweep->name, report->sweep->n_points, counts->rows, counts->by_status[SWEEP_OK],
        counts->by_status[SWEEP_DOES_NOT_FIT], counts->by_status[SWEEP_INVALID]);
    g_string_append_printf(out, "%-*s", LABEL, "Sweep");
    text_append_wrapped(out, text, LABEL, WIDTH);
    g_string_append_printf(out, "%-*s%s, %s is better\n", LABEL, "Objective", report->sweep->objective.path,
                           report->sweep->objective.maximize ? "higher" : "lower");
}

static void append_best(const Report *report, GString *out)
{
    const GPtrArray *best = sweep_front_best(report->front)->cells;
    g_autoptr(GString) text = g_string_new(NULL);
    for (guint i = 0; i < report->sweep->fields->len; i++) {
        const char *cell = g_ptr_array_index(best, i);
        g_string_append_printf(text, "%s%s\302\240%s", i > 0 ? ", " : "", g_array_index(report->sweep->fields, SweepField, i).path,
                               cell[0] != '\0' ? cell : "(default)");
    }
    g_string_append_printf(out, "\n%-*s", LABEL, "Best");
    text_append_wrapped(out, text->str, LABEL, WIDTH);
    double step = number_at(report, best, "step_time_s");
    g_autofree char *time = text_seconds(step);
    g_autofree char *memory = text_gib((int64_t)number_at(report, best, "peak_memory_bytes"));
    g_autofree char *why = g_strdup_printf(
        "%s %.6g; a step of %s: forward %.1f %%, backward %.1f %%, optimizer %.1f %%, of it waiting for communication %.1f %% and "
        "for the host %.1f %%; %s GiB allocated at the peak",
        report->sweep->objective.path, number_at(report, best, report->sweep->objective.path), time,
        100 * number_at(report, best, "time.forward_s") / step, 100 * number_at(report, best, "time.backward_s") / step,
        100 * number_at(report, best, "time.optimizer_s") / step, 100 * number_at(report, best, "time.exposed_comm_s") / step,
        100 * number_at(report, best, "time.exposed_host_s") / step, memory);
    g_string_append_printf(out, "%*s", LABEL, "");
    text_append_wrapped(out, why, LABEL, WIDTH);
}

static void append_front(const Report *report, GString *out)
{
    const GPtrArray *rows = sweep_front_rows(report->front);
    guint n = MIN(rows->len, (guint)FRONT_SHOWN);
    g_string_append(out, "\nFront: no other row is better in all of");
    for (guint i = 0; i < report->sweep->pareto->len; i++) {
        const SweepGoal *goal = &g_array_index(report->sweep->pareto, SweepGoal, i);
        g_string_append_printf(out, "%s %s (%s)", i > 0 ? "," : "", goal->path, goal->maximize ? "higher" : "lower");
    }
    g_string_append_c(out, '\n');
    append_rows(report, out, rows, n);
    if (n < rows->len) {
        g_string_append_printf(out, "  … and %u more\n", rows->len - n);
    }
}

static void row_free(void *data)
{
    SweepRow *row = data;
    g_ptr_array_unref(row->cells);
    g_free(row);
}

static char *write_text(const Report *report)
{
    GString *out = g_string_new(NULL);
    append_counts(report, out);
    if (sweep_front_best(report->front) == NULL) {
        g_string_append_printf(out, "\n%-*snone: no row fits\n", LABEL, "Best");
        return g_string_free(out, FALSE);
    }
    append_best(report, out);
    append_knobs(report, out);
    if (report->sweep->top > 0) {
        g_string_append_printf(out, "\nThe best %u\n", sweep_front_top(report->front)->len);
        append_rows(report, out, sweep_front_top(report->front), sweep_front_top(report->front)->len);
    }
    append_front(report, out);
    return g_string_free(out, FALSE);
}

char *sweep_report_of_rows(const Sweep *sweep, const SweepLayout *layout, const char *title, GPtrArray *rows,
                           GPtrArray *turned)
{
    SweepCounts counts = {0};
    g_autoptr(SweepFront) front = sweep_front_new(sweep, layout);
    g_autoptr(GHashTable) table = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, row_free);
    Report report = {sweep, layout, NULL, &counts, front, table};
    GString *out = g_string_new(title);
    for (guint i = 0; i < rows->len; i++) {
        sweep_front_add(front, g_ptr_array_index(rows, i), i + 1);
    }
    if (sweep_front_best(front) == NULL) {
        g_string_append_printf(out, "\n%-*snone: nothing fits\n", LABEL, "Best");
        return g_string_free(out, FALSE);
    }
    for (guint i = 0; i < turned->len; i++) {
        find_turned(&report, g_ptr_array_index(turned, i), NULL);
    }
    append_best(&report, out);
    append_knobs(&report, out);
    g_string_append_printf(out, "\nThe best %u\n", sweep_front_top(front)->len);
    append_rows(&report, out, sweep_front_top(front), sweep_front_top(front)->len);
    return g_string_free(out, FALSE);
}

char *sweep_report_text(const Sweep *sweep, const SweepLayout *layout, const char *path, gboolean is_shard,
                        SweepCounts *ret_counts,
                        GError **error)
{
    *ret_counts = (SweepCounts){0};
    g_autoptr(SweepFront) front = sweep_front_new(sweep, layout);
    g_autoptr(GHashTable) turned = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, row_free);
    Report report = {sweep, layout, path, ret_counts, front, turned};
    if (is_shard) {
        if (!visit_rows(&report, rank_row, error)) {
            return NULL;
        }
        GString *text = g_string_new(NULL);
        append_counts(&report, text);
        return g_string_free(text, FALSE);
    }
    if (!visit_rows(&report, rank_row, error) ||
        (sweep_front_best(front) != NULL && !visit_rows(&report, find_turned, error))) {
        return NULL;
    }
    return write_text(&report);
}
