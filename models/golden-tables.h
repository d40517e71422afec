/*
 * Golden tables: integer examples of capacity and drop rules, dispatch tables and expert placement, as JSON files
 * capacity.json, dispatch.json and eplb.json, against models/moe-tables.h and models/placement.h.
 */
#pragma once

#include <glib.h>

/* Whether a file of that name holds such a table. */
gboolean golden_table_knows(const char *file_name);

/*
 * Compares all numbers of a table. FALSE and an error when the text is no such table, or (MOESIM_ERROR_FAILED) at the
 * first number that differs. ret_n_compared: how many were equal.
 */
gboolean golden_table_check(const char *file_name, const char *text, size_t length, int64_t *ret_n_compared,
                            GError **error);
