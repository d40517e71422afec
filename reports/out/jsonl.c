#include "reports/out/jsonl.h"

#include <jansson.h>
#include <stdlib.h>

static json_t *cell_value(const Table *table, size_t row, size_t column)
{
    if (!table_has(table, row, column)) {
        return json_null();
    }
    switch (table_column_kind(table, column)) {
    case TABLE_INTEGER:
        return json_integer((json_int_t)table_integer(table, row, column));
    case TABLE_NUMBER:
        return json_real(table_number(table, row, column));
    case TABLE_TRUTH:
        return json_boolean(table_integer(table, row, column) != 0);
    case TABLE_TEXT:
    default:
        return json_string(table_text(table, row, column));
    }
}

static void append_dump(GString *out, json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(12));
    g_string_append(out, text != NULL ? text : "null");
    free(text);
    json_decref(value);
}

void jsonl_append_members(GString *out, const Table *table, size_t row, size_t first, size_t end)
{
    for (size_t column = first; column < end; column++) {
        g_string_append(out, column > first ? ", " : "");
        append_dump(out, json_string(table_column_name(table, column)));
        g_string_append(out, ": ");
        append_dump(out, cell_value(table, row, column));
    }
}

void jsonl_append_row(GString *out, const Table *table, size_t row)
{
    g_string_append_c(out, '{');
    jsonl_append_members(out, table, row, 0, table_n_columns(table));
    g_string_append(out, "}\n");
}
