/*
 * Strict reading of CSV tables: one header row, then rows of as many cells as it has names.
 *
 * Cells are text; what they mean is the caller's. Blank lines are skipped. An empty or repeated column name,
 * a row with more or fewer cells, and broken quoting are errors that name FILE:LINE. Lines are counted from
 * 1; line ends inside quotes count.
 */
#pragma once

#include <glib.h>

typedef struct CsvTable CsvTable;

/* Reads a file, or a text under that name. */
CsvTable *csv_table_load(const char *path, GError **error);
CsvTable *csv_table_parse(const char *text, size_t length, const char *name, GError **error);
void csv_table_free(CsvTable *table);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(CsvTable, csv_table_free)

/* File name, for messages. */
const char *csv_table_name(const CsvTable *table);
size_t csv_table_n_rows(const CsvTable *table); /* the header not counted */
size_t csv_table_n_columns(const CsvTable *table);
const char *csv_table_column(const CsvTable *table, size_t column);

/* Column of that name, or -1. */
int csv_table_find(const CsvTable *table, const char *name);

/* Text of a cell ("" when empty), borrowed. */
const char *csv_table_cell(const CsvTable *table, size_t row, size_t column);

/* The cell as a finite number; FALSE and "FILE:LINE: column: …" when it is none. */
gboolean csv_table_number(const CsvTable *table, size_t row, size_t column, double *ret_number, GError **error);

/* Line on which a row starts. */
size_t csv_table_line(const CsvTable *table, size_t row);
