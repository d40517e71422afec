/*
 * moesim sweep --search: the best rows of a sweep that is too large to evaluate, and what is proven about the others.
 */
#pragma once

#include "reports/cli/sweep-run.h"

/*
 * Searches, writes the best rows (the best first, as rows of a sweep) and prints a report. Interrupted, it writes and prints
 * the best so far, says what is not proven, and fails with MOESIM_ERROR_CANCELED.
 */
gboolean sweep_search(const SweepRun *run, GError **error);
