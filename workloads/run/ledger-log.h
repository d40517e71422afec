/*
 * Ledger log: inside of the ledger (ledger.h). What an ending asked of the shelf that its heads disturb.
 *
 * Shelves of the allocator (alloc-model.h) know nothing of each other, and what is asked of them is the same whatever
 * they answer. So of two endings that begin alike but for one shelf, the second does on all the others what the first
 * did: it asks that shelf alone, what the log of the first walk says, and only that can make a difference. Heads work
 * on large blocks of the compute stream; theirs is the shelf.
 *
 * What is alive differs by what blocks are larger than was asked for. The log notes the most that was alive between its
 * steps, so that the most that is alive in the second ending is known; who made it is known where it is made in the
 * same place.
 */
#pragma once

#include "workloads/run/ledger-walk.h"

/* Parts of an ending that are told apart: from one stop to the next (ledger-ending.h). */
enum { LOG_PARTS_MAX = 8 };

typedef struct LogPart {
    Ledger ledger;                 /* noted; peak_call: from the first call of the ending; reserved_bytes: 0 */
    int64_t others_reserved_bytes; /* more than before, on the other shelves */
    guint peak_step;               /* the step behind which the peak was */
} LogPart;

typedef struct LedgerLog {
    gint64 begin;  /* of which ending it is, for whoever keeps it */
    GArray *steps; /* LogStep */
    GArray *calls; /* guint: the first step of each call */
    LogPart parts[LOG_PARTS_MAX];
    int n_parts;
    HeldBytes held;  /* at the begin */
    gint32 n_blocks; /* that have a number */
    int shelf;
    GArray *owners;         /* while it is written: by slot, what it holds */
    GArray *blocks;         /* while it is written: AllocBlock by number, borrowed */
    int64_t reserved_bytes; /* while it is written: seen last */
    int64_t others_reserved_bytes;
    guint part_begin; /* while it is written: the first step of the part under way */
    uint64_t last_use;
} LedgerLog;

LedgerLog *ledger_log_new(void);
void ledger_log_free(LedgerLog *log);

/* Memory that it takes. */
size_t ledger_log_size_bytes(const LedgerLog *log);

/* The shelf that heads disturb. */
int ledger_log_shelf(const LedgerWalk *walk);

/*
 * Blocks of that shelf that buffers hold which have changed since the mark, in an order that does not depend on the
 * blocks: they are numbered from 0, and those that are taken later from there on. Fills blocks (AllocBlock by number; 0
 * = given back).
 */
void ledger_log_begin(const LedgerWalk *walk, GArray *blocks);

/* Says in words (int64_t) where the numbered blocks are. */
void ledger_log_append_places(const LedgerWalk *walk, const GArray *blocks, GArray *words);

/* From now on the walk tells what it does. blocks: as at the begin, kept up; borrowed. */
void ledger_log_start(LedgerLog *log, LedgerWalk *walk, GArray *blocks);

/* The walk comes to a call; a part of the ending is over; the last one is. */
void ledger_log_call(LedgerLog *log);
void ledger_log_close(LedgerLog *log, const LedgerWalk *walk, guint first_call);
void ledger_log_stop(LedgerLog *log, LedgerWalk *walk);

/* Told by the walk: a buffer got a block, and the peak was looked at; is about to give it back; moves; the forward pass
 * ends. */
void ledger_log_take(LedgerLog *log, const LedgerWalk *walk, gint32 slot, int64_t bytes);
void ledger_log_give(LedgerLog *log, const LedgerWalk *walk, gint32 slot);
void ledger_log_move(LedgerLog *log, gint32 from, gint32 to);
void ledger_log_mark(LedgerLog *log);

/* An ending that asks its shelf alone. */
typedef struct LedgerReplay {
    const LedgerLog *log; /* NULL: it is walked */
    LedgerWalk *walk;
    GArray *blocks; /* as above */
    HeldBytes more; /* alive than in the log */
    int64_t others_reserved_bytes;
    int64_t peak_bytes; /* since the part began */
    guint peak_step;
    int64_t more_by_tag[N_MEM_TAGS]; /* at the peak of the log */
    int64_t after_forward_bytes;
    int n_parts; /* done */
} LedgerReplay;

/* blocks: as at the begin; borrowed. */
void ledger_replay_start(LedgerReplay *replay, const LedgerLog *log, LedgerWalk *walk, GArray *blocks);

/* The call-th call of the ending. */
void ledger_replay_call(LedgerReplay *replay, guint call);

/*
 * Ends a part: what it noted, its peak_call as in a program whose ending begins with first_call. FALSE: its peak is
 * somewhere else than in the log, and who made it is not known.
 */
gboolean ledger_replay_close(LedgerReplay *replay, guint first_call, Ledger *ret_ledger);
