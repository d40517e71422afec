/*
 * Ledger endings: inside of the ledger (ledger.h). The runs that end a program, behind calls of its own.
 *
 * What an ending notes depends on the moment of memory at which it begins: the node at which a walk was marked, and
 * what has changed since. It is the same for all sizes of the tails (alloc-model.h) within bounds: a zone. Another size
 * of what a head left over makes the first layers of the backward pass choose other blocks; after some calls memory
 * mostly looks as it has looked before. So an ending has stops, at its begin and after 1, 2, 3, 5, 9, 17 ... calls, and
 * what is behind a stop is an ending of its own, with its own zones: a walk goes on until what is behind is known.
 *
 * Endings that begin alike but for the shelf that heads work on are walked once; the others ask that shelf alone
 * (ledger-log.h).
 */
#pragma once

#include "workloads/run/ledger-walk.h"

/* Calls that are walked one after the other: a run, or what lies between runs. */
typedef struct LedgerPiece {
    guint first, n;
    gint64 run; /* id, or -1 */
} LedgerPiece;

/* What is known of endings. Serves one thread. */
typedef struct LedgerEndings LedgerEndings;
LedgerEndings *ledger_endings_new(void);
void ledger_endings_free(LedgerEndings *endings);

size_t ledger_endings_size_bytes(const LedgerEndings *endings);
void ledger_endings_clear(LedgerEndings *endings);

const LedgerEndingCounts *ledger_endings_counts(const LedgerEndings *endings);

/*
 * Joins to *ledger what the last runs of the walk's program note. walk: before their first call, marked at `node`; it
 * is left anywhere behind the mark. may_replay: a log will do in place of a walk; *ret_done FALSE: it did not, and
 * nothing was joined. An error, with the place, when the program uses a buffer wrongly.
 */
gboolean ledger_endings_run(LedgerEndings *endings, LedgerWalk *walk, guint32 node, const LedgerPiece *runs,
                            guint n_runs, gboolean may_replay, Ledger *ledger, gboolean *ret_done, GError **error);
