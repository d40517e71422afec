/*
 * Tables: named columns with units, filled row by row; the only thing that the writers (csv, text) see.
 *
 * A cell that was not put, and a number that is not finite, is missing: writers leave it empty.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef enum TableKind { TABLE_TEXT, TABLE_INTEGER, TABLE_NUMBER, TABLE_TRUTH } TableKind;

/* What a number counts. Cells hold base units; text output scales them and says so above the column. */
typedef enum TableUnit {
    TABLE_PLAIN,
    TABLE_SECONDS,     /* shown as ms */
    TABLE_BYTES,       /* shown as GiB (2^30) */
    TABLE_BYTES_PER_S, /* shown as GB/s (10^9) */
    TABLE_PERCENT,     /* is one already */
    N_TABLE_UNITS
} TableUnit;

typedef struct Table Table;

Table *table_new(void);
void table_free(Table *table);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Table, table_free)

/* Adds a column; all columns before the first row. Returns its index. */
size_t table_add_column(Table *table, const char *name, TableKind kind, TableUnit unit);

/* Adds a row of missing cells; the puts below fill it. */
void table_add_row(Table *table);
void table_put_text(Table *table, size_t column, const char *text);
void table_put_integer(Table *table, size_t column, int64_t value);
void table_put_number(Table *table, size_t column, double value);
void table_put_truth(Table *table, size_t column, gboolean value);

/* Forgets the rows, keeps the columns: for output that streams. */
void table_clear_rows(Table *table);

size_t table_n_rows(const Table *table);
size_t table_n_columns(const Table *table);
const char *table_column_name(const Table *table, size_t column);
TableKind table_column_kind(const Table *table, size_t column);
TableUnit table_column_unit(const Table *table, size_t column);

/* Cells: whether there is one, and its value (borrowed text; integers read as numbers too, truth values as integers 0 and 1). */
gboolean table_has(const Table *table, size_t row, size_t column);
const char *table_text(const Table *table, size_t row, size_t column);
int64_t table_integer(const Table *table, size_t row, size_t column);
double table_number(const Table *table, size_t row, size_t column);
