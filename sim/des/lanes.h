/*
 * Lanes: the in-order queues of one device, small enough to be written down and taken up again.
 *
 * They follow the rules of streams (stream.h) on a device of their own (share.h), to the nanosecond: a lane does one item
 * at a time in the order pushed, running work slows other work down by a law, a wait lets a lane go on when another one has
 * come far enough. What is left out is what several devices need: joins.
 *
 * A moment of the machine can be stored in bytes, with all times counted from now. Equal bytes mean an equal future, if
 * the same is pushed; so what follows needs to be worked out once.
 *
 * Invariants: (1) what is stored and taken up again behaves as if it had not been; (2) time moves in lanes_run() alone.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "sim/base/quantity.h"
#include "sim/des/share.h"

enum { LANES_MAX = 8, LANE_SUMS_MAX = 4 };

/* A point in a lane: reached once that many of its items are done. */
typedef struct LanePoint {
    int lane;
    uint64_t n; /* 0 = always reached */
} LanePoint;

/*
 * A sum of time: while a lane of `busy` works and none of `hiding`; while none works at all if busy is 0. Bits by lane. Or
 * while links slow lanes down.
 */
typedef struct LaneWatch {
    guint32 busy, hiding;
    gboolean crowded;
} LaneWatch;

typedef struct LaneSums {
    SimTime ns[LANE_SUMS_MAX]; /* by watch */
} LaneSums;

/* What happened on the way. */
typedef struct LaneMark {
    guint32 value;              /* the caller's */
    SimTime ns;                 /* when its lane came to it */
    LaneSums sums;              /* up to then */
} LaneMark;

typedef struct Lanes Lanes;

Lanes *lanes_new(int n_lanes, const LaneWatch *watches, int n_watches);
void lanes_free(Lanes *lanes);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Lanes, lanes_free)

/* Back to the start: nothing pushed, time 0. The law is borrowed; one is set before anything is pushed. */
void lanes_reset(Lanes *lanes, const ShareLaw *law);

SimTime lanes_now(const Lanes *lanes);

/* Pushes at the end of a lane. Work does not start before a time; a duration of 0 is done at once. */
void lanes_push_work(Lanes *lanes, int lane, const ShareWork *work, SimTime not_before_ns);
void lanes_push_wait(Lanes *lanes, int lane, LanePoint point);
void lanes_push_mark(Lanes *lanes, int lane, guint32 value);

/* The point that a lane reaches when it has done what is pushed so far. */
LanePoint lanes_point(const Lanes *lanes, int lane);
gboolean lanes_reached(const Lanes *lanes, LanePoint point);

/*
 * Whether a lane has nothing to do and had nothing before now either: what is pushed there could have been done earlier, had
 * it been pushed then.
 */
gboolean lanes_is_idle(const Lanes *lanes, int lane);

/* Runs until the point is reached, or, without one (NULL), until nothing is left to do. FALSE: blocked before that. */
gboolean lanes_run(Lanes *lanes, const LanePoint *point);

/* Items not done yet, in all lanes. */
size_t lanes_n_pending(const Lanes *lanes);

/* The watches' sums so far. */
const LaneSums *lanes_sums(const Lanes *lanes);

/* Marks that lanes came to since lanes_clear_marks(), in order of time; borrowed until the next push or run. */
const LaneMark *lanes_marks(const Lanes *lanes, guint *ret_n);
void lanes_clear_marks(Lanes *lanes);

/* Work items started so far. */
uint64_t lanes_n_events(const Lanes *lanes);

/*
 * Appends the moment to an array of int64_t: everything but the time itself, the sums and the marks. lanes_load() takes
 * it up at time now_ns with sums of 0, and returns how many words it has read. Points count on from their lanes' own
 * beginning at the moment: lanes_relative() is what a point is called after it was taken up.
 */
void lanes_store(const Lanes *lanes, GArray *words);
size_t lanes_load(Lanes *lanes, const int64_t *words, SimTime now_ns);
LanePoint lanes_relative(const Lanes *lanes, LanePoint point);
