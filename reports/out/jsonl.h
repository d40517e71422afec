/*
 * Tables as JSON lines: an object a row, keys in the order of the columns, numbers of 12 digits, missing cells null.
 */
#pragma once

#include "reports/out/table.h"

/* Appends the members of columns first … end − 1, without braces: "\"a\": 1, \"b\": null". */
void jsonl_append_members(GString *out, const Table *table, size_t row, size_t first, size_t end);

/* Appends the whole row with its line end. */
void jsonl_append_row(GString *out, const Table *table, size_t row);
