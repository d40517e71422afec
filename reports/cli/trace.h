/*
 * Trace: a record as Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
 *
 * One process per class of ranks (and one for the rank with the most memory, where that is another), one track per stream and one for phases, a counter per kind of memory, arrows from the
 * class that came last to a collective to those that waited for it. Times are microseconds in decimals, from which a reader gets the
 * simulation's nanoseconds whether it rounds or cuts; else neighbours on a track would seem to overlap by one.
 */
#pragma once

#include <glib.h>

#include "workloads/plan/plan.h"
#include "workloads/run/record.h"

/* The trace as JSON; caller frees. The same record gives the same bytes. */
GString *trace_json(const Plan *plan, const RunRecord *record);
