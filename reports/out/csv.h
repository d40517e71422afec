/*
 * Tables as CSV: base units as they are, numbers of 12 digits unquoted, text quoted, missing cells empty.
 */
#pragma once

#include "reports/out/table.h"

/* Appends the header line, or one row, with its line end. */
void csv_append_header(GString *out, const Table *table);
void csv_append_row(GString *out, const Table *table, size_t row);

/* Appends the cells of columns first … end − 1 with a comma between each two. */
void csv_append_cells(GString *out, const Table *table, size_t row, size_t first, size_t end);

/* The whole table; caller frees. */
char *csv_from_table(const Table *table);
