/*
 * Share: the few activities that run at once on one device and slow each other down.
 *
 * An activity has a class (compute, communication, copy, …) and a nominal duration: how long it takes alone.
 * The set of classes that run at a moment gives each class a rate, a fraction of its nominal speed; several
 * activities of one class divide its rate equally. Whenever the set changes, what remains of each activity
 * is settled at the old rates and its end is worked out anew.
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

/* Rate of each of n activities of a class, in 65536ths, while the classes of running run; at least 1. */
guint32 share_law_rate(const ShareLaw *law, guint32 running, int cls, int n);

/* All the numbers of a law, for comparison: laws of equal numbers are alike. */
const guint32 *share_law_numbers(const ShareLaw *law, size_t *ret_n);
void share_law_free(ShareLaw *law);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ShareLaw, share_law_free)

/* A device. done(self, arg) is called at the end of each activity. The law is borrowed. */
Share *share_new(SimEngine *engine, const ShareLaw *law, EventFn done, void *self);
void share_free(Share *share);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Share, share_free)

/* Starts an activity now; returns its place. Its end comes through done(self, arg). */
int share_start(Share *share, int cls, SimTime duration_ns, uint64_t arg);

/*
 * Takes an activity out. One that has ended stays in its place, and its class counts as running, until this
 * is called: a collective's kernel occupies its device until the last member is through. It no longer takes
 * part in its class's rate.
 */
void share_stop(Share *share, int place);
