#include "reports/out/table.h"

#include <math.h>

typedef struct Column {
    char *name;
    TableKind kind;
    TableUnit unit;
} Column;

typedef struct Cell {
    gboolean present;
    char *text;
    int64_t integer;
    double number;
} Cell;

struct Table {
    GArray *columns; /* Column */
    GArray *cells;   /* Cell, row by row */
};

static void clear_column(gpointer data)
{
    g_free(((Column *)data)->name);
}

static void clear_cell(gpointer data)
{
    g_free(((Cell *)data)->text);
}

Table *table_new(void)
{
    Table *table = g_new0(Table, 1);
    table->columns = g_array_new(FALSE, TRUE, sizeof(Column));
    table->cells = g_array_new(FALSE, TRUE, sizeof(Cell));
    g_array_set_clear_func(table->columns, clear_column);
    g_array_set_clear_func(table->cells, clear_cell);
    return table;
}

void table_free(Table *table)
{
    if (table == NULL) {
        return;
    }
    g_array_unref(table->cells);
    g_array_unref(table->columns);
    g_free(table);
}

static const Column *get_column(const Table *table, size_t column)
{
    g_assert(column < table->columns->len);
    return &g_array_index(table->columns, Column, column);
}

static Cell *get_cell(const Table *table, size_t row, size_t column)
{
    g_assert(column < table->columns->len && row < table_n_rows(table));
    return &g_array_index(table->cells, Cell, row * table->columns->len + column);
}

size_t table_add_column(Table *table, const char *name, TableKind kind, TableUnit unit)
{
    g_assert(table->cells->len == 0);
    Column column = {g_strdup(name), kind, unit};
    g_array_append_val(table->columns, column);
    return table->columns->len - 1;
}

void table_add_row(Table *table)
{
    g_assert(table->columns->len > 0);
    g_array_set_size(table->cells, table->cells->len + table->columns->len);
}

static Cell *put(Table *table, size_t column, TableKind kind)
{
    g_assert(get_column(table, column)->kind == kind);
    Cell *cell = get_cell(table, table_n_rows(table) - 1, column);
    g_assert(!cell->present);
    cell->present = TRUE;
    return cell;
}

void table_put_text(Table *table, size_t column, const char *text)
{
    put(table, column, TABLE_TEXT)->text = g_strdup(text);
}

void table_put_integer(Table *table, size_t column, int64_t value)
{
    Cell *cell = put(table, column, TABLE_INTEGER);
    cell->integer = value;
    cell->number = (double)value;
}

void table_put_number(Table *table, size_t column, double value)
{
    Cell *cell = put(table, column, TABLE_NUMBER);
    cell->present = isfinite(value);
    cell->number = value;
}

void table_put_truth(Table *table, size_t column, gboolean value)
{
    put(table, column, TABLE_TRUTH)->integer = value ? 1 : 0;
}

void table_clear_rows(Table *table)
{
    g_array_set_size(table->cells, 0);
}

size_t table_n_rows(const Table *table)
{
    return table->columns->len > 0 ? table->cells->len / table->columns->len : 0;
}

size_t table_n_columns(const Table *table)
{
    return table->columns->len;
}

const char *table_column_name(const Table *table, size_t column)
{
    return get_column(table, column)->name;
}

TableKind table_column_kind(const Table *table, size_t column)
{
    return get_column(table, column)->kind;
}

TableUnit table_column_unit(const Table *table, size_t column)
{
    return get_column(table, column)->unit;
}

gboolean table_has(const Table *table, size_t row, size_t column)
{
    return get_cell(table, row, column)->present;
}

const char *table_text(const Table *table, size_t row, size_t column)
{
    return get_cell(table, row, column)->text;
}

int64_t table_integer(const Table *table, size_t row, size_t column)
{
    return get_cell(table, row, column)->integer;
}

double table_number(const Table *table, size_t row, size_t column)
{
    return get_cell(table, row, column)->number;
}
