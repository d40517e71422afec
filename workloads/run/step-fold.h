/*
 * Step fold: inside of step_fold() (step-memo.h). step-fold.c makes moves and rounds, step-run.c runs of calls.
 *
 * A host that never waits gets ever further ahead of the device. Then the lanes run ahead of it: once much is pending,
 * they run until everything before the last call is done. That is exact as long as nothing that is pushed later could
 * have begun before, which each push checks (is_late); else the program is simulated once more without that. And once
 * the host is far ahead, further than any call takes it, how far says nothing about what the lanes do: such a state is
 * named without it, and the host's time is added up beside the moves.
 */
#pragma once

#include "workloads/run/step-memo.h"

/* A token that is pending after a move, where it came from, and how far off it is. */
typedef struct Pending {
    gint32 token;
    gint16 origin;
    LanePoint left;
} Pending;

/* A segment's view, once somebody has asked for it. */
typedef struct FoldView {
    TimeView view;
    gboolean is_known;
} FoldView;

/*
 * A run of a program. The moment is known in one of two forms or both: as a state, with the program's token for each of
 * its pending ones (slots), or in the lanes, with the point that each token stands for.
 */
typedef struct Fold {
    StepMemo *memo;
    Lanes *lanes;
    const Program *program;
    StepTimes *times;
    int64_t law_key; /* the law, and whether the lanes may run ahead */
    FoldView *views; /* by segment */
    gint64 state;    /* -1: only in the lanes */
    gboolean in_lanes;
    GArray *slots;     /* gint32: program tokens that are pending, when the moment is a state */
    Pending *pending;  /* scratch: one per program token */
    LanePoint *points; /* by program token, when in the lanes */
    SimTime now_ns, host_ns;
    gboolean runs_ahead; /* the lanes may run ahead of the host */
    gboolean is_late;    /* and have done so where they must not */
    gboolean was_near; /* the last move began with the host's time in its state, or made it wait: what is known of it is
                          exact */
    SimTime start_ns, mark_ns; /* measured step, end of the phase before; -1 before the first */
    LaneSums sums, start_sums; /* of the measured step: since the start of the run, up to its start */
    LaneSums end_sums;
    int64_t n_unsettled;
    GArray *run_marks; /* MoveMark, counted from the start of the fold: since the run of calls under way began */
} Fold;

/* Moments whose host is at least that far ahead: their states do not say how far. No call takes so long to issue. */
static const SimTime FAR_NS = (SimTime)100 * 1000 * 1000;

static inline void sums_add(LaneSums *sums, const LaneSums *more, int64_t times)
{
    for (int i = 0; i < LANE_SUMS_MAX; i++) {
        sums->ns[i] += times * more->ns[i];
    }
}

static inline LaneSums sums_minus(const LaneSums *a, const LaneSums *b)
{
    LaneSums difference = *a;
    sums_add(&difference, b, -1);
    return difference;
}

/* How far the host is ahead: what it issues next could have begun so long ago. */
static inline SimTime fold_lead_ns(const Fold *fold)
{
    return fold->now_ns - fold->host_ns;
}

/* Whether the state that the moment has says so alone, without the host. */
gboolean fold_is_far(const Fold *fold);

/* The state, which was named without the host, gets its name with it. */
void fold_come_near(Fold *fold);

/* View of a segment of the program. */
const TimeView *fold_view(Fold *fold, gint32 segment);

/* One call: looked up if it can be. FALSE: the program blocks itself. */
gboolean fold_make_move(Fold *fold, const TimeView *view, const Call *call);

/* The end of a phase, in a move that began at from_ns: so the measured step begins, and what it sums up. */
void fold_note_mark(Fold *fold, const MoveMark *mark, SimTime from_ns);

/* The calls of a run. FALSE: the program blocks itself. */
gboolean fold_make_run(Fold *fold, const ProgramRun *run);
