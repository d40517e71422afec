/*
 * Rows of a sweep: their columns, and an outcome as text.
 *
 * Columns: the swept fields, the scalars of the result in its own order, further results that the sweep asks for, status,
 * reason. A row begins with the values of its point, so that a row of a file can be told to be that of a point.
 */
#pragma once

#include "reports/out/row-file.h"
#include "reports/out/table.h"
#include "workloads/sweep/evaluate.h"

typedef struct SweepLayout SweepLayout;

/* Checks the result paths of the sweep's goals and columns. */
SweepLayout *sweep_layout_new(const Sweep *sweep, RowFormat format, GError **error);
void sweep_layout_free(SweepLayout *layout);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SweepLayout, sweep_layout_free)

RowFormat sweep_layout_format(const SweepLayout *layout);
size_t sweep_layout_n_columns(const SweepLayout *layout);

/* Column of a swept field, a result path, "status" or "reason"; −1 when there is none. */
int sweep_layout_find(const SweepLayout *layout, const char *name);

/* The header row ("" for JSON lines); borrowed. */
const char *sweep_layout_header(const SweepLayout *layout);

/* An empty table of the layout's columns, one for each thread. */
Table *sweep_layout_table(const SweepLayout *layout);

/* The cell of a field for the axis's value_idx-th value, as row_cells() reads it; caller frees. */
char *sweep_layout_cell(const SweepLayout *layout, guint field, int64_t value_idx);

/* Appends the row of a point, or what every row of that point begins with. `table` is for scratch. */
void sweep_layout_append_row(const SweepLayout *layout, Table *table, int64_t point, const SweepOutcome *outcome,
                             GString *out);
void sweep_layout_append_start(const SweepLayout *layout, Table *table, int64_t point, GString *out);
