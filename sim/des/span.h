/*
 * Spans: a record of what ran where from when to when.
 *
 * A lane is a place where one thing runs at a time (a stream). Spans of a lane are added in the order they
 * end and do not overlap, which is what makes the questions below cheap.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "sim/base/quantity.h"

typedef struct Span {
    SimTime start_ns, end_ns;
    uint64_t tag; /* the caller's */
    int lane;
} Span;

typedef struct SpanLog SpanLog;

SpanLog *span_log_new(void);
void span_log_free(SpanLog *log);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SpanLog, span_log_free)

void span_log_add(SpanLog *log, const Span *span);
size_t span_log_length(const SpanLog *log);
const Span *span_log_get(const SpanLog *log, size_t idx);

/* Chooses lanes. */
typedef gboolean (*SpanChooser)(const void *data, int lane);

/* Time during which at least one of the chosen lanes is busy. */
SimTime span_log_busy_ns(const SpanLog *log, SpanChooser chooser, const void *data);

/*
 * Time during which a lane of the first choice is busy and none of the second: communication that no
 * computation hides, for one.
 */
SimTime span_log_exposed_ns(const SpanLog *log, SpanChooser chooser, SpanChooser hiding, const void *data);
