/*
 * Rows of a published table, cell by cell.
 */
#pragma once

#include "sim/base/csv-read.h"

typedef struct CsvRow {
    const CsvTable *table;
    size_t idx;
} CsvRow;

static const char *csv_row_text(CsvRow row, const char *column)
{
    return csv_table_cell(row.table, row.idx, (size_t)csv_table_find(row.table, column));
}

/* or_else where the cell is empty. */
static double csv_row_number(CsvRow row, const char *column, double or_else)
{
    double value = or_else;
    return csv_table_number(row.table, row.idx, (size_t)csv_table_find(row.table, column), &value, NULL) ? value : or_else;
}
