#include "sim/base/csv-read.h"

#include <csv.h>
#include <math.h>
#include <string.h>

#include "sim/base/error.h"
#include "sim/base/file.h"

struct CsvTable {
    char *name;
    GPtrArray *cells; /* char *, row by row, the header first */
    GArray *lines;    /* size_t: where each row starts, the header first */
    size_t n_columns;

    /* While reading: libcsv's callbacks know no place, so lines go to it one at a time. */
    size_t line;
    size_t row_line;
    size_t row_cells;
    gboolean in_row;
    GError *mistake;
};

static void fail(CsvTable *table, size_t line, const char *format, ...) G_GNUC_PRINTF(3, 4);

static void fail(CsvTable *table, size_t line, const char *format, ...)
{
    if (table->mistake != NULL) {
        return;
    }
    va_list args;
    va_start(args, format);
    g_autofree char *what = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error(&table->mistake, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s:%" G_GSIZE_FORMAT ": %s", table->name, line,
                what);
}

static void on_cell(void *text, size_t length, void *self)
{
    CsvTable *table = self;
    g_ptr_array_add(table->cells, g_strndup(text, length));
    table->row_cells++;
}

static void check_header(CsvTable *table)
{
    g_autoptr(GHashTable) names = g_hash_table_new(g_str_hash, g_str_equal); /* for look-up alone */
    for (size_t i = 0; i < table->n_columns; i++) {
        const char *name = csv_table_column(table, i);
        if (name[0] == '\0') {
            fail(table, table->row_line, "column %" G_GSIZE_FORMAT " has no name", i + 1);
        }
        if (!g_hash_table_add(names, g_ptr_array_index(table->cells, i))) {
            fail(table, table->row_line, "column \"%s\" stands there twice", name);
        }
    }
}

static void on_row(int end, void *self)
{
    (void)end;
    CsvTable *table = self;
    g_array_append_val(table->lines, table->row_line);
    if (table->lines->len == 1) {
        table->n_columns = table->row_cells;
        check_header(table);
    } else if (table->row_cells != table->n_columns) {
        fail(table, table->row_line, "has %" G_GSIZE_FORMAT " cells where the header has %" G_GSIZE_FORMAT,
             table->row_cells, table->n_columns);
    }
    table->row_cells = 0;
    table->in_row = FALSE;
}

static void read_lines(CsvTable *table, struct csv_parser *parser, const char *text, const char *end)
{
    while (text < end && table->mistake == NULL) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((newline != NULL ? newline + 1 : end) - text);
        table->line++;
        if (!table->in_row) {
            table->row_line = table->line;
            table->in_row = length > 0 && text[0] != '\n' && text[0] != '\r';
        }
        if (csv_parse(parser, text, length, on_cell, on_row, table) != length) {
            fail(table, table->line, "%s: check the quotes around and inside the cells",
                 csv_strerror(csv_error(parser)));
        }
        text += length;
    }
    if (table->mistake == NULL && csv_fini(parser, on_cell, on_row, table) != 0) {
        fail(table, table->row_line, "a quote that opens in this row is never closed");
    }
    if (table->mistake == NULL && table->lines->len == 0) {
        fail(table, 1, "is empty; the first row must name the columns");
    }
}

CsvTable *csv_table_parse(const char *text, size_t length, const char *name, GError **error)
{
    g_autoptr(CsvTable) table = g_new0(CsvTable, 1);
    table->name = g_strdup(name);
    table->cells = g_ptr_array_new_with_free_func(g_free);
    table->lines = g_array_new(FALSE, FALSE, sizeof(size_t));
    if (!g_utf8_validate_len(text, length, NULL)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: is not a text in UTF-8", name);
        return NULL;
    }
    struct csv_parser parser;
    if (csv_init(&parser, CSV_STRICT | CSV_STRICT_FINI | CSV_APPEND_NULL) != 0) {
        g_error("%s: no memory for a CSV parser", name);
    }
    static const char byte_order_mark[] = "\xef\xbb\xbf"; /* spreadsheets write one */
    size_t n_skipped = length >= 3 && memcmp(text, byte_order_mark, 3) == 0 ? 3 : 0;
    read_lines(table, &parser, text + n_skipped, text + length);
    csv_free(&parser);
    if (table->mistake != NULL) {
        g_propagate_error(error, g_steal_pointer(&table->mistake));
        return NULL;
    }
    return g_steal_pointer(&table);
}

CsvTable *csv_table_load(const char *path, GError **error)
{
    size_t length;
    g_autofree char *text = file_read(path, &length, error);
    return text == NULL ? NULL : csv_table_parse(text, length, path, error);
}

void csv_table_free(CsvTable *table)
{
    if (table == NULL) {
        return;
    }
    g_clear_error(&table->mistake);
    g_array_unref(table->lines);
    g_ptr_array_unref(table->cells);
    g_free(table->name);
    g_free(table);
}

const char *csv_table_name(const CsvTable *table)
{
    return table->name;
}

size_t csv_table_n_rows(const CsvTable *table)
{
    return table->lines->len - 1;
}

size_t csv_table_n_columns(const CsvTable *table)
{
    return table->n_columns;
}

const char *csv_table_column(const CsvTable *table, size_t column)
{
    g_assert(column < table->n_columns);
    return g_ptr_array_index(table->cells, column);
}

int csv_table_find(const CsvTable *table, const char *name)
{
    for (size_t i = 0; i < table->n_columns; i++) {
        if (strcmp(csv_table_column(table, i), name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

const char *csv_table_cell(const CsvTable *table, size_t row, size_t column)
{
    g_assert(row < csv_table_n_rows(table) && column < table->n_columns);
    return g_ptr_array_index(table->cells, (row + 1) * table->n_columns + column);
}

gboolean csv_table_number(const CsvTable *table, size_t row, size_t column, double *ret_number, GError **error)
{
    const char *text = csv_table_cell(table, row, column);
    char *end;
    double number = g_ascii_strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(number) || strpbrk(text, "xX") != NULL) { /* hexadecimal would be read, too */
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s:%" G_GSIZE_FORMAT ": %s: \"%s\" is not a number",
                    table->name, csv_table_line(table, row), csv_table_column(table, column), text);
        return FALSE;
    }
    *ret_number = number;
    return TRUE;
}

size_t csv_table_line(const CsvTable *table, size_t row)
{
    g_assert(row < csv_table_n_rows(table));
    return g_array_index(table->lines, size_t, row + 1);
}
