/*
 * What a sweep found, for people: read from its finished file, so that it does not matter how the file came to be.
 *
 * The best row and the next ones; the front of rows that no other row beats in every goal; for the best row what
 * each knob buys: the rows in which that knob alone is turned. Only rows that fit are ranked. Equal rows rank in file order.
 */
#pragma once

#include "reports/cli/sweep-rows.h"

typedef struct SweepCounts {
    int64_t rows, by_status[N_SWEEP_STATUSES];
    char *first_reason; /* of an invalid row; NULL when there is none; freed by the caller */
} SweepCounts;

/*
 * The report of single rows (cells by column, the best first) in place of a file: title lines, the best, its knobs, the
 * list. turned are the rows in which one axis alone differs from the best row. Caller frees.
 */
char *sweep_report_of_rows(const Sweep *sweep, const SweepLayout *layout, const char *title, GPtrArray *rows,
                           GPtrArray *turned);

/* The report as text (of a shard only the counts), caller frees; NULL and an error when the file cannot be read. */
char *sweep_report_text(const Sweep *sweep, const SweepLayout *layout, const char *path, gboolean is_shard,
                        SweepCounts *ret_counts,
                        GError **error);
