#include "reports/out/csv.h"

#include <csv.h>
#include <string.h>

#include "reports/out/number.h"

/* libcsv quotes one field; commas and line ends are the caller's. */
static void append_quoted(GString *out, const char *text)
{
    size_t length = strlen(text);
    size_t size = csv_write(NULL, 0, text, length);
    gsize before = out->len;
    g_string_set_size(out, before + size);
    csv_write(out->str + before, size, text, length);
}

void csv_append_header(GString *out, const Table *table)
{
    for (size_t column = 0; column < table_n_columns(table); column++) {
        if (column > 0) {
            g_string_append_c(out, ',');
        }
        append_quoted(out, table_column_name(table, column));
    }
    g_string_append_c(out, '\n');
}

static void append_cell(GString *out, const Table *table, size_t row, size_t column)
{
    if (!table_has(table, row, column)) {
        return;
    }
    switch (table_column_kind(table, column)) {
    case TABLE_TEXT:
        append_quoted(out, table_text(table, row, column));
        break;
    case TABLE_INTEGER:
        number_append_integer(out, table_integer(table, row, column));
        break;
    case TABLE_NUMBER:
        number_append(out, table_number(table, row, column));
        break;
    case TABLE_TRUTH:
        g_string_append(out, table_integer(table, row, column) != 0 ? "true" : "false");
        break;
    }
}

void csv_append_cells(GString *out, const Table *table, size_t row, size_t first, size_t end)
{
    for (size_t column = first; column < end; column++) {
        if (column > first) {
            g_string_append_c(out, ',');
        }
        append_cell(out, table, row, column);
    }
}

void csv_append_row(GString *out, const Table *table, size_t row)
{
    csv_append_cells(out, table, row, 0, table_n_columns(table));
    g_string_append_c(out, '\n');
}

char *csv_from_table(const Table *table)
{
    GString *out = g_string_new(NULL);
    csv_append_header(out, table);
    for (size_t row = 0; row < table_n_rows(table); row++) {
        csv_append_row(out, table, row);
    }
    return g_string_free(out, FALSE);
}
