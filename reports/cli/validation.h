/*
 * Validation: a table of measured cases against predictions.
 *
 * Errors are signed: positive = predicted too much. Over the rows of a measured column the mean of the
 * signed errors is the bias, the mean of their absolute values is what bounds are put on, the worst is the largest
 * absolute one and names its row. A row that could not be predicted is a failure and enters no mean.
 */
#pragma once

#include <jansson.h>

#include "reports/out/table.h"
#include "workloads/cases.h"

/*
 * Predicts one plan: the result object (new reference), or NULL and an error. rank is whose memory to report,
 * -1 = the worst.
 */
typedef json_t *(*ValidationPredict)(json_t *plan, const char *name, const char *base_dir, int64_t rank,
                                     GError **error);

/* Called before each row; FALSE ends the validation after the rows done so far. */
typedef gboolean (*ValidationProceed)(size_t row, size_t n_rows);

/* One measured column. */
typedef struct ValidationSummary {
    const char *path;     /* result path, borrowed from the cases */
    size_t n;             /* rows compared */
    double bias;          /* percent; NAN when n = 0, likewise below */
    double mean_absolute; /* percent */
    double worst;         /* percent, signed */
    const char *worst_id; /* borrowed from the cases */
} ValidationSummary;

typedef struct Validation {
    const Cases *cases;
    size_t n_rows;                /* rows tried */
    size_t n_failed;              /* rows that could not be predicted */
    double *measured;             /* [row][column]; NAN = not measured */
    double *predicted;            /* [row][column]; NAN = not predicted */
    char **failures;              /* [row]: why it could not be predicted, or NULL */
    ValidationSummary *summaries; /* [column] */
} Validation;

/*
 * Predicts all rows. NULL and an error only for mistakes in the table itself: a measured path that no result
 * has, a cell that is no number. proceed may be NULL.
 */
Validation *validation_run(const Cases *cases, ValidationPredict predict, ValidationProceed proceed, GError **error);
void validation_free(Validation *validation);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Validation, validation_free)

/* Signed error in percent; NAN when there is none (not measured, not predicted, or measured 0). */
double validation_error(const Validation *validation, size_t row, size_t column);

/* The summary of a result path, or NULL when it was not measured. */
const ValidationSummary *validation_summary(const Validation *validation, const char *path);

/* For people: signed errors of every row, and their summary. */
Table *validation_errors_table(const Validation *validation);
Table *validation_summary_table(const Validation *validation);

/* For files: per row and column what was measured, predicted, and the error; a status and a reason. */
Table *validation_full_table(const Validation *validation);
