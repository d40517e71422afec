/*
 * Rows of operator tables as the kernels that were launched.
 */
#pragma once

#include "hw/fit.h"
#include "sim/base/csv-read.h"

typedef struct TableRow {
    const CsvTable *table;
    size_t row;
    const Device *device;
    const char *name; /* the row's "name" (or "op") */
    GError **error;   /* the first mistake of the row; getters then return 0 */
    gboolean failed;
} TableRow;

typedef enum RowUse { ROW_USED, ROW_UNUSED, ROW_WRONG } RowUse;

/*
 * Fills a sample (label and shape left to the caller when NULL) and the law that it tells of. family = the table's file
 * name after "op_", without ".csv".
 */
RowUse calibrate_row(const char *family, TableRow *row, FitSample *sample, LawKind *ret_law);
