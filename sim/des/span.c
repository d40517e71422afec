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

/* The start or end of a span of one of two choices. */
typedef struct Edge {
    SimTime time_ns;
    int choice; /* 0 or 1 */
    int step;   /* +1 or -1 */
} Edge;

static int compare_edges(const void *a, const void *b)
{
    SimTime time_a = ((const Edge *)a)->time_ns, time_b = ((const Edge *)b)->time_ns;
    return (time_a > time_b) - (time_a < time_b);
}

static void add_edges(const SpanLog *log, SpanChooser chooser, const void *data, int choice, GArray *edges)
{
    for (guint i = 0; chooser != NULL && i < log->spans->len; i++) {
        const Span *span = &g_array_index(log->spans, Span, i);
        if (chooser(data, span->lane)) {
            Edge ends[2] = {{span->start_ns, choice, 1}, {span->end_ns, choice, -1}};
            g_array_append_vals(edges, ends, 2);
        }
    }
}

SimTime span_log_exposed_ns(const SpanLog *log, SpanChooser chooser, SpanChooser hiding, const void *data)
{
    g_autoptr(GArray) edges = g_array_new(FALSE, FALSE, sizeof(Edge));
    add_edges(log, chooser, data, 0, edges);
    add_edges(log, hiding, data, 1, edges);
    g_array_sort(edges, compare_edges);
    int n_busy[2] = {0, 0};
    SimTime sum_ns = 0, last_ns = 0;
    for (guint i = 0; i < edges->len; i++) {
        const Edge *edge = &g_array_index(edges, Edge, i);
        if (n_busy[0] > 0 && n_busy[1] == 0) {
            sum_ns += edge->time_ns - last_ns;
        }
        n_busy[edge->choice] += edge->step;
        last_ns = edge->time_ns;
    }
    return sum_ns;
}

SimTime span_log_busy_ns(const SpanLog *log, SpanChooser chooser, const void *data)
{
    return span_log_exposed_ns(log, chooser, NULL, data);
}
