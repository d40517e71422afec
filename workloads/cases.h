/*
 * Cases: a CSV table whose rows are plans, with what was measured for them.
 *
 * A column is a dotted plan path ("parallel.ep", "model.overrides.num_hidden_layers"), `id`, `source`, or
 * `measured.` and a result path. `measured.rank` says whose memory was measured. A cell is a JSON scalar or a
 * bare word; a list is words separated by spaces; an empty cell leaves the plan's default. Paths in plans
 * are relative to the CSV file.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdint.h>

typedef struct Cases Cases;

/* Reads a table; a header without rows, or with columns that contradict one another, is an error. */
Cases *cases_load(const char *path, GError **error);

/* The same from a text; name is for messages and for the folder that paths are relative to. */
Cases *cases_parse(const char *text, const char *name, GError **error);
void cases_free(Cases *cases);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Cases, cases_free)

size_t cases_n_rows(const Cases *cases);

/* The row's id, or "row 3" without an id column (borrowed). */
const char *cases_id(const Cases *cases, size_t row);

/* "CASES.csv:7", for messages about a row; "CASES.csv" has row G_MAXSIZE (borrowed). */
const char *cases_place(const Cases *cases, size_t row);

/* Folder that the rows' paths are relative to. */
const char *cases_base_dir(const Cases *cases);

/* The row as a plan object; new reference. */
json_t *cases_plan(const Cases *cases, size_t row, GError **error);

/* Measured columns: how many, and the result path of each ("step_time_s"). measured.rank is not one of them. */
size_t cases_n_measured(const Cases *cases);
const char *cases_measured_path(const Cases *cases, size_t column);

/* What was measured; NAN when the cell is empty. FALSE and an error when it is no number. */
gboolean cases_measured(const Cases *cases, size_t row, size_t column, double *ret_value, GError **error);

/* Rank whose memory was measured, or -1 when the table does not say. */
gboolean cases_measured_rank(const Cases *cases, size_t row, int64_t *ret_rank, GError **error);

/*
 * The value of a cell at a plan path: a JSON scalar, a bare word, a list where the field is one, or NULL and
 * an error (no place). New reference.
 */
json_t *cases_cell_value(const char *path, const char *cell, GError **error);

/*
 * Sets a value (stolen) at a dotted path of a plan object, making the objects on the way. A model given by
 * its name becomes {"config": name} when something below it is set. FALSE when something on the way is no object.
 */
gboolean cases_set(json_t *plan, const char *path, json_t *value, GError **error);
