/*
 * Tracker: bytes alive by tag over simulated time, the peak, and who made it.
 *
 * Every change carries its time and an id of the caller's (the instruction that allocates); the change that
 * lifts the sum above everything before it is remembered with what was alive then, tag by tag.
 *
 * Invariants: (1) no tag is ever below 0; (2) the snapshot's tags sum to the peak.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "sim/base/quantity.h"

enum { TRACKER_TAGS_MAX = 16 };

/* The highest moment so far. */
typedef struct TrackerPeak {
    int64_t bytes;
    SimTime time_ns;
    uint64_t who;
    int64_t by_tag[TRACKER_TAGS_MAX];
} TrackerPeak;

/* A moment of the history: the highest of the changes that it stands for. */
typedef struct TrackerPoint {
    SimTime time_ns;
    int64_t bytes;
    int64_t by_tag[TRACKER_TAGS_MAX];
} TrackerPoint;

typedef struct Tracker Tracker;

Tracker *tracker_new(int n_tags);
void tracker_free(Tracker *tracker);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Tracker, tracker_free)

/* A change of delta bytes (negative = freed). */
void tracker_add(Tracker *tracker, int tag, int64_t delta_bytes, SimTime time_ns, uint64_t who);

/* Bytes alive now: of a tag, of all. */
int64_t tracker_tag_bytes(const Tracker *tracker, int tag);
int64_t tracker_bytes(const Tracker *tracker);

/* Highest so far of one tag on its own. */
int64_t tracker_tag_peak_bytes(const Tracker *tracker, int tag);
const TrackerPeak *tracker_peak(const Tracker *tracker);

/* Forgets peaks: from now on the present is the highest. */
void tracker_reset_peak(Tracker *tracker, SimTime time_ns, uint64_t who);

/*
 * Keeps a history of at most n_max points (even, at least 2). When it is full, each two points become the
 * higher of them and from then on a point stands for twice as many changes, so the peak stays in it.
 */
void tracker_keep_history(Tracker *tracker, size_t n_max);
size_t tracker_n_points(const Tracker *tracker);
const TrackerPoint *tracker_point(const Tracker *tracker, size_t idx);
