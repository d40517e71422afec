#include "sim/des/span.h"

struct SpanLog {
    GArray *spans; /* Span */
};

SpanLog *span_log_new(void)
{
    SpanLog *log = g_new0(SpanLog, 1);
    log->spans = g_array_new(FALSE, FALSE, sizeof(Span));
    return log;
}

void span_log_free(SpanLog *log)
{
    if (log == NULL) {
        return;
    }
    g_array_unref(log->spans);
    g_free(log);
}

void span_log_add(SpanLog *log, const Span *span)
{
    g_assert(span->end_ns >= span->start_ns);
    g_array_append_vals(log->spans, span, 1);
}

size_t span_log_length(const SpanLog *log)
{
    return log->spans->len;
}

const Span *span_log_get(const SpanLog *log, size_t idx)
{
    g_assert(idx < log->spans->len);
    return &g_array_index(log->spans, Span, idx);
}

/* Where the sweep stands in one lane: before the start of its current span, or inside of it. */
typedef struct Cursor {
    guint32 idx; /* current span, or NO_SPAN behind the last */
    gboolean inside;
    gboolean hiding;
    SimTime next_ns; /* start or end of the current span, whichever comes next */
} Cursor;

static const guint32 NO_SPAN = G_MAXUINT32;

static const Span *get_span(const SpanLog *log, guint32 idx)
{
    return &g_array_index(log->spans, Span, idx);
}

static int count_lanes(const SpanLog *log)
{
    int n = 0;
    for (guint i = 0; i < log->spans->len; i++) {
        n = MAX(n, get_span(log, i)->lane + 1);
    }
    return n;
}

/* The first span of each lane, and for each span the next one of its lane. */
static void link_lanes(const SpanLog *log, guint32 *first, int n_lanes, guint32 *next)
{
    for (int lane = 0; lane < n_lanes; lane++) {
        first[lane] = NO_SPAN;
    }
    for (guint i = log->spans->len; i-- > 0;) {
        int lane = get_span(log, i)->lane;
        next[i] = first[lane];
        first[lane] = i;
    }
}

static void stand(Cursor *cursor, const SpanLog *log, guint32 idx)
{
    cursor->idx = idx;
    cursor->inside = FALSE;
    cursor->next_ns = idx == NO_SPAN ? G_MAXINT64 : get_span(log, idx)->start_ns;
}

static void step(Cursor *cursor, const SpanLog *log, const guint32 *next)
{
    if (cursor->inside) {
        stand(cursor, log, next[cursor->idx]);
    } else {
        cursor->inside = TRUE;
        cursor->next_ns = get_span(log, cursor->idx)->end_ns;
    }
}

/* Goes from edge to edge over all lanes at once; each lane is in order already, and lanes are few. */
static SimTime sweep(const SpanLog *log, Cursor *cursors, int n_cursors, const guint32 *next)
{
    int n_busy = 0, n_hiding = 0;
    SimTime sum_ns = 0, last_ns = 0;
    for (;;) {
        Cursor *least = cursors;
        for (int i = 1; i < n_cursors; i++) {
            least = cursors[i].next_ns < least->next_ns ? &cursors[i] : least;
        }
        if (n_cursors == 0 || least->idx == NO_SPAN) {
            return sum_ns;
        }
        sum_ns += n_busy > 0 && n_hiding == 0 ? least->next_ns - last_ns : 0;
        last_ns = least->next_ns;
        *(least->hiding ? &n_hiding : &n_busy) += least->inside ? -1 : 1;
        step(least, log, next);
    }
}

SimTime span_log_exposed_ns(const SpanLog *log, SpanChooser chooser, SpanChooser hiding, const void *data)
{
    int n_lanes = count_lanes(log), n_cursors = 0;
    g_autofree guint32 *first = g_new(guint32, n_lanes + 1), *next = g_new(guint32, log->spans->len + 1);
    g_autofree Cursor *cursors = g_new0(Cursor, 2 * n_lanes + 1);
    link_lanes(log, first, n_lanes, next);
    for (int lane = 0; lane < n_lanes; lane++) {
        for (int hides = 0; hides < 2; hides++) {
            SpanChooser chooses = hides ? hiding : chooser;
            if (chooses != NULL && chooses(data, lane)) {
                cursors[n_cursors].hiding = hides;
                stand(&cursors[n_cursors++], log, first[lane]);
            }
        }
    }
    return sweep(log, cursors, n_cursors, next);
}

SimTime span_log_busy_ns(const SpanLog *log, SpanChooser chooser, const void *data)
{
    return span_log_exposed_ns(log, chooser, NULL, data);
}
