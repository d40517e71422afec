/*
 * Check suite: everything that `moesim check` runs, as a list of named checks with an outcome each.
 *
 *  operators   every sample of every operator (models/check.h)
 *  pairs       two ways to compute the same thing: fused and unfused, chunked and step by step
 *  golden      the cases that the program carries, in float64 and float32, and those of a folder
 *  training    golden training runs of that folder
 *
 * Names are "group/what"; the order is fixed. Checks share nothing and may run in any order.
 */
#pragma once

#include <glib.h>

/* What one check showed. */
typedef struct CheckOutcome {
    gboolean passed;
    double worst; /* largest error as a part of its bound; 0 when everything was exact */
    char *detail; /* what was compared, or what failed; owned */
} CheckOutcome;

typedef struct CheckSuite CheckSuite;

/*
 * The checks whose name contains `filter` (NULL: all). golden_dir (may be NULL) is laid out as ops/ *.safetensors and
 * train/ * (folders); it must exist and hold at least one of both.
 */
CheckSuite *check_suite_new(const char *golden_dir, const char *filter, GError **error);
void check_suite_free(CheckSuite *suite);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(CheckSuite, check_suite_free)

size_t check_suite_n(const CheckSuite *suite);
const char *check_suite_name(const CheckSuite *suite, size_t idx);

/* Runs one check. Never fails: what goes wrong is in the outcome. Clear it with check_outcome_clear(). */
void check_suite_run(const CheckSuite *suite, size_t idx, CheckOutcome *ret_outcome);
void check_outcome_clear(CheckOutcome *outcome);
