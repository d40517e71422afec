#include "sim/mem/tracker.h"

#include <string.h>

struct Tracker {
    int n_tags;
    int64_t bytes;
    int64_t by_tag[TRACKER_TAGS_MAX];
    int64_t tag_peaks[TRACKER_TAGS_MAX];
    TrackerPeak peak;
    TrackerPoint *points; /* NULL: no history */
    size_t n_points, n_points_max;
    size_t n_changes, n_changes_max; /* in the last point; per point */
};

Tracker *tracker_new(int n_tags)
{
    g_assert(n_tags > 0 && n_tags <= TRACKER_TAGS_MAX);
    Tracker *tracker = g_new0(Tracker, 1);
    tracker->n_tags = n_tags;
    return tracker;
}

void tracker_free(Tracker *tracker)
{
    if (tracker == NULL) {
        return;
    }
    g_free(tracker->points);
    g_free(tracker);
}

/* Halves the points. */
static void thin_history(Tracker *tracker)
{
    for (size_t i = 0; i < tracker->n_points / 2; i++) {
        const TrackerPoint *a = &tracker->points[2 * i], *b = &tracker->points[2 * i + 1];
        tracker->points[i] = b->bytes > a->bytes ? *b : *a;
    }
    tracker->n_points /= 2;
    tracker->n_changes_max *= 2;
    tracker->n_changes = tracker->n_changes_max; /* the last point is full */
}

static void note_history(Tracker *tracker, SimTime time_ns)
{
    gboolean is_full = tracker->n_points == 0 || tracker->n_changes == tracker->n_changes_max;
    if (is_full && tracker->n_points == tracker->n_points_max) {
        thin_history(tracker);
    }
    if (is_full) {
        tracker->n_points++;
        tracker->n_changes = 0;
    }
    TrackerPoint *point = &tracker->points[tracker->n_points - 1];
    if (tracker->n_changes == 0 || tracker->bytes > point->bytes) {
        point->time_ns = time_ns;
        point->bytes = tracker->bytes;
        memcpy(point->by_tag, tracker->by_tag, sizeof point->by_tag);
    }
    tracker->n_changes++;
}

static void note_peak(Tracker *tracker, SimTime time_ns, uint64_t who)
{
    tracker->peak.bytes = tracker->bytes;
    tracker->peak.time_ns = time_ns;
    tracker->peak.who = who;
    memcpy(tracker->peak.by_tag, tracker->by_tag, sizeof tracker->peak.by_tag);
}

void tracker_add(Tracker *tracker, int tag, int64_t delta_bytes, SimTime time_ns, uint64_t who)
{
    g_assert(tag >= 0 && tag < tracker->n_tags);
    g_assert(delta_bytes >= -tracker->by_tag[tag] && delta_bytes <= G_MAXINT64 - tracker->bytes);
    tracker->bytes += delta_bytes;
    tracker->by_tag[tag] += delta_bytes;
    tracker->tag_peaks[tag] = MAX(tracker->tag_peaks[tag], tracker->by_tag[tag]);
    if (tracker->bytes > tracker->peak.bytes) {
        note_peak(tracker, time_ns, who);
    }
    if (tracker->points != NULL) {
        note_history(tracker, time_ns);
    }
}

int64_t tracker_tag_bytes(const Tracker *tracker, int tag)
{
    g_assert(tag >= 0 && tag < tracker->n_tags);
    return tracker->by_tag[tag];
}

int64_t tracker_bytes(const Tracker *tracker)
{
    return tracker->bytes;
}

int64_t tracker_tag_peak_bytes(const Tracker *tracker, int tag)
{
    g_assert(tag >= 0 && tag < tracker->n_tags);
    return tracker->tag_peaks[tag];
}

const TrackerPeak *tracker_peak(const Tracker *tracker)
{
    return &tracker->peak;
}

void tracker_reset_peak(Tracker *tracker, SimTime time_ns, uint64_t who)
{
    memcpy(tracker->tag_peaks, tracker->by_tag, sizeof tracker->tag_peaks);
    note_peak(tracker, time_ns, who);
}

void tracker_keep_history(Tracker *tracker, size_t n_max)
{
    g_assert(n_max >= 2 && n_max % 2 == 0);
    g_free(tracker->points);
    tracker->points = g_new0(TrackerPoint, n_max);
    tracker->n_points = 0;
    tracker->n_points_max = n_max;
    tracker->n_changes = 0;
    tracker->n_changes_max = 1;
}

size_t tracker_n_points(const Tracker *tracker)
{
    return tracker->n_points;
}

const TrackerPoint *tracker_point(const Tracker *tracker, size_t idx)
{
    g_assert(idx < tracker->n_points);
    return &tracker->points[idx];
}
