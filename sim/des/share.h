/*
 * Share: the few activities that run at once on one device and slow each other down.
 *
 * An activity has a class (compute, communication, copy, …) and a nominal duration: how long it takes alone.
 * The set of classes that run at a moment gives each class a rate, a fraction of its nominal speed; several
 * activities of one class divide its rate equally, unless the law keeps them apart. Activities that load links
 * (link-load.h) slow each other down there, too. Whenever the set changes, what remains of each activity is settled at
 * the old rates and its end is worked out anew.
 *
 * Rates are whole 65536ths and work is counted in ns x 65536, so all arithmetic is exact; only the end is
 * rounded up, to the next nanosecond.
 *
 * Invariants: (1) remaining work is never negative and is 0 at the end; (2) one event at most is valid: its
 * epoch is the share's.
 */
#pragma once

#include <glib.h>

#include "sim/des/engine.h"
#include "sim/base/link-load.h"
#include "sim/des/span.h"

enum { SHARE_CLASSES_MAX = 10, SHARE_RATE_ONE = 65536 };

typedef struct ShareLaw ShareLaw;
typedef struct Share Share;

/*
 * Rate (0 < rate <= 1, else cut to that) of the activities of `cls` while the classes of running (bit c =
 * class c, its own included) run.
 */
typedef double (*ShareRate)(const void *data, guint32 running, int cls);

/* Tabulates rate over every set of n_classes classes; data is used here only. One law serves many shares. */
ShareLaw *share_law_new(int n_classes, ShareRate rate, const void *data);

/*
 * Activities of these classes (bits) do not divide their rate: only links tell what they cost each other. While several of
 * them are on the device, all together, a class `several` of the law counts as running, too.
 */
void share_law_keep_apart(ShareLaw *law, guint32 classes, int several);

/* The classes that count as running: with `several`, if so many activities of classes kept apart are on the device. */
guint32 share_law_running(const ShareLaw *law, guint32 running, int n_apart);
gboolean share_law_is_apart(const ShareLaw *law, int cls);

/* Rate of each of n activities of a class, in 65536ths, while the classes of running run; at least 1. */
guint32 share_law_rate(const ShareLaw *law, guint32 running, int cls, int n);

/* A rate at a pace (LINK_PACE_ONE = its own); at least 1. */
static inline guint32 share_paced(guint32 rate, guint32 pace)
{
    return MAX(1, (guint32)((uint64_t)rate * pace / LINK_PACE_ONE));
}

/* All the numbers of a law, for comparison: laws of equal numbers are alike. */
const guint32 *share_law_numbers(const ShareLaw *law, size_t *ret_n);
void share_law_free(ShareLaw *law);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ShareLaw, share_law_free)

/* A device. done(self, arg) is called at the end of each activity. The law is borrowed. */
Share *share_new(SimEngine *engine, const ShareLaw *law, EventFn done, void *self);
void share_free(Share *share);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Share, share_free)

/* Notes from now on as spans of a lane, in a borrowed log, when links slow activities down. */
void share_log_crowded(Share *share, SpanLog *log, int lane);

/* What is started. */
typedef struct ShareWork {
    int cls;
    SimTime duration_ns;
    LinkLoad load;
} ShareWork;

/* Starts an activity now; returns its place. Its end comes through done(self, arg). */
int share_start(Share *share, const ShareWork *work, uint64_t arg);

/*
 * Takes an activity out. One that has ended stays in its place, and its class counts as running, until this
 * is called: a collective's kernel occupies its device until the last member is through. It no longer takes
 * part in its class's rate, nor loads links.
 */
void share_stop(Share *share, int place);
