/*
 * Text for people: tables with aligned columns and their units above, bars, wrapped lines.
 *
 * Memory is shown in GiB (2^30 bytes), rates in GB/s (10^9), times in ms; the unit stands in the header.
 */
#pragma once

#include "reports/out/table.h"

/* Appends the table: header, units where any column has one, rows; each line begins with `indent` blanks. */
void text_append_table(GString *out, const Table *table, int indent);

/* Appends a bar of `width` places, filled to fraction (cut to 0..1): "#####.....". */
void text_append_bar(GString *out, double fraction, int width);

/* Appends text broken into lines of at most `width` characters; lines after the first begin with `indent` blanks.
 * No line is broken at a no-break blank (U+00A0), which is written as a blank. */
void text_append_wrapped(GString *out, const char *text, int indent, int width);

/* Numbers with few digits; caller frees. "2.78 T", "104 B", "16.3 M" for counts; "1.234 s", "12.3 ms" for times. */
char *text_count(double value);
char *text_seconds(double seconds);

/* "43.40" GiB. */
char *text_gib(int64_t bytes);
