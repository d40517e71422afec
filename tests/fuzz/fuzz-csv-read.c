/* Any bytes as a CSV table: a table that is read has a cell for every row and column. */
#include <stddef.h>
#include <stdint.h>

#include "sim/base/csv-read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(CsvTable) table = csv_table_parse((const char *)data, size, "fuzz.csv", &error);
    g_assert((table == NULL) == (error != NULL));
    for (size_t row = 0; table != NULL && row < csv_table_n_rows(table); row++) {
        g_assert(csv_table_line(table, row) > 0);
        for (size_t column = 0; column < csv_table_n_columns(table); column++) {
            g_assert(csv_table_cell(table, row, column) != NULL);
        }
    }
    return 0;
}
