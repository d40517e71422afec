/*
 * Step memo: what the machine of a class of ranks did once and need not do again.
 *
 * A moment of the machine (streams with what stands in them, host, tokens), counted from now, is a state; what a call pushes
 * is a view; a move leads from a state by a view to a state, with the time it took. States, views and moves are known by
 * their content: the priced instructions themselves, with the law by which they slow each other down. So a layer that finds
 * the machine as an equal layer did before it, in this plan or in another one, is looked up instead of simulated, and what
 * is looked up is what would be simulated: the same numbers.
 *
 * A host that runs ahead without a bound is followed by lanes that run ahead themselves past AHEAD_USUAL items (step-fold.h). Past
 * PENDING_MAX items the machine is no state. A
 * segment of more than VIEW_PLACES_MAX tokens has no view, and its program is left to the streams.
 */
#pragma once

#include "sim/base/intern.h"
#include "sim/des/lanes.h"
#include "workloads/run/step.h"

/* Sums that the machine keeps: see StepTimes. */
enum { STEP_SUM_COMM, STEP_SUM_COPY, STEP_SUM_IDLE, STEP_SUM_CROWDED, N_STEP_SUMS };

enum { STEP_LATEST = 512 };

enum { AHEAD_USUAL = 512, PENDING_MAX = 1024, VIEW_PLACES_MAX = 1024, VIEW_SLOTS_MAX = 128, MOVE_MARKS_MAX = 4 };

typedef enum ViewItemKind { VIEW_WORK, VIEW_RECORD, VIEW_WAIT, VIEW_HOST, VIEW_SYNC, VIEW_MARK, VIEW_DRAIN } ViewItemKind;

/* What one instruction pushes. */
typedef struct ViewItem {
    guint64 kind : 8, lane : 8, cls : 8;
    guint64 value : LINK_LOAD_BITS; /* RECORD, WAIT: of the view's places; MARK: phase; WORK: its load */
    SimTime duration_ns;  /* WORK */
    SimTime host_ns;      /* what the host needs to issue it; SYNC: to go on after it */
    SimTime offset_ns;    /* WORK: starts no earlier than this after the host came to it */
} ViewItem;

/* A segment as the machine sees it: what it pushes, and where its tokens are. */
typedef struct TimeView {
    guint32 id;
    const Place *places;
    const ViewItem *items;
    SimTime host_ns;  /* of all items */
    SimTime reach_ns; /* from when the host comes to it, the latest that something starts no earlier than */
    gboolean syncs;   /* the host waits */
    guint n_places, n_items; /* n_items 0 and n_places past VIEW_PLACES_MAX: there is no view */
} TimeView;

/* A mark on the way, counted from the start of the move. */
typedef struct MoveMark {
    guint32 phase;
    SimTime ns;
    LaneSums sums;
} MoveMark;

/* Where a call leads from a state. */
typedef struct Move {
    gint64 state; /* afterwards; -1 = too large to be one */
    SimTime ns;
    gboolean is_near; /* begins with the host's time in its state, or makes it wait: then this is its time, counted from the end */
    SimTime host_ns;
    LaneSums sums;
    guint32 n_marks, n_slots; /* n_slots G_MAXUINT32: not known, or too much to look up */
    MoveMark marks[MOVE_MARKS_MAX];
    gint16 origins[VIEW_SLOTS_MAX]; /* pending tokens afterwards: place of the view, or -1 - pending token before it */
} Move;

/*
 * Where the rest of a run of calls (program.h) leads from a state, with certain tokens of the program pending: like Move, but
 * known by place in the run.
 */
typedef struct RunMove {
    gint64 state; /* afterwards; -1 = not known yet */
    SimTime ns;
    gboolean is_near; /* as in Move; else host_ns is what the host needs for all calls, and it must be so far ahead: */
    SimTime host_ns, lead_ns;
    LaneSums sums;
    guint32 n_marks;
    guint n_slots, first_slot; /* tokens of the program that are pending afterwards: in StepMemo.run_slots */
    MoveMark marks[MOVE_MARKS_MAX];
} RunMove;

/* What one run of a segment adds, by label and by collective, where that is anything. */
typedef struct LabelCount {
    gint32 label;
    int64_t launches;
    double flops;
    SimTime busy_ns, recomputed_ns;
    int64_t moved_bytes;
} LabelCount;

typedef struct CollCount {
    gint32 group, coll;
    LinkLoad loads[N_STREAMS]; /* the largest parts */
    SimTime ns;
    int64_t count, bytes;
} CollCount;

typedef struct SegmentCounts {
    LabelCount *labels;
    CollCount *colls;
    guint n_labels, n_colls;
    SimTime evidence_ns[N_EVIDENCES];
    double recomputed_flops;
    SimTime host_ns, table_ns, pages_ns; /* of all instructions; of that, tables of copy-ins and their fresh pages */
    double most;        /* the largest of its sums of device times, host times (both 16-fold), bytes and launches */
    SimTime longest_ns; /* of its instructions; G_MAXINT64: past what can be counted */
    gint32 longest_label;
} SegmentCounts;

/* What a run of calls (program.h) is at a clock, whatever program it is in. */
typedef struct RunFacts {
    guint32 id;
    gint64 side;
    double part;
    SegmentCounts counts; /* of its calls, each once */
    SimTime ahead_ns;     /* the largest host_ns or reach_ns of its views */
    guint n_places;       /* the most that one has */
} RunFacts;

struct StepMemo {
    Intern *laws, *views, *states, *keys;
    Cluster *cluster; /* whose law it is, with copies that yield or do not; kept alive */
    gboolean copies_yield;
    ShareLaw *law;
    const ShareLaw *numbered_law; /* the one that was asked for last, and its number among the laws */
    guint32 law_number;
    GArray *moves;         /* Move, by key */
    Intern *run_keys;
    GArray *run_moves;     /* RunMove, by key */
    GArray *run_slots;     /* gint32: tokens */
    size_t ahead_min;      /* items past which lanes run ahead; tests set it before the first step, as this: */
    gboolean ahead_whole;  /* to the end of the last call, which is too far mostly */
    uint64_t n_ran_ahead, n_kept_back;
    GHashTable *kept_back; /* ids of first runs of programs whose lanes must not run ahead: for look-up alone */
    struct KnownView *latest[STEP_LATEST]; /* of segments by their address: asked for last */
    GHashTable *known;     /* KnownView by segment and clock: of segments that are shared between plans */
    GHashTable *runs;      /* RunFacts */
    size_t known_bytes;    /* of both */
    Lanes *lanes;
    GArray *words, *items, *places; /* scratch */
    GArray *points, *pending;       /* scratch of a fold, by token: LanePoint, which are 0 between folds; Pending */
    GArray *pointed;                /* tokens that points are not 0 of */
    SegmentCounts counts;           /* of the last segment that is not shared */
    uint64_t n_looked_up, n_simulated;
};

/* View of a segment at a clock. */
TimeView step_view(StepMemo *memo, Segment *segment, const ProgramClock *clock);

/* View that lets everything end. */
TimeView step_view_drain(StepMemo *memo);

/*
 * Runs the program of a class that has its device and its groups for itself. FALSE: it blocks itself, a fault of the
 * lowering. *ret_settled FALSE: the repeated micro-batches never find the machine as it was, and nothing is said of times.
 */
gboolean step_fold(StepMemo *memo, const ShareLaw *law, const Program *program, StepTimes *times, gboolean *ret_settled);

/* Counts of a segment at a clock; borrowed until the next call. step_count_segment() makes them, to be cleared. */
const SegmentCounts *step_counts(StepMemo *memo, Segment *segment, const ProgramClock *clock);
void step_count_segment(const Segment *segment, const ProgramClock *clock, SegmentCounts *ret_counts);
void step_counts_clear(SegmentCounts *counts);

/* What a run of a program is at its clock; borrowed. */
const RunFacts *step_run_facts(StepMemo *memo, const Program *program, const ProgramRun *run);

/* How often each segment of a program is called outside of its runs; free with g_free(). */
int64_t *step_calls_beside_runs(const Program *program);

/* Everything of a step that does not depend on when: counts and nominal times by label, of one class. */
void step_count(StepMemo *memo, const Program *program, StepTimes *times);
