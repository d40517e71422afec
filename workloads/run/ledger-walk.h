/*
 * Ledger walk: inside of the ledger (ledger.h). A walk stands at a place of a program: an allocator, the buffers that
 * are alive, sums. What it notes on its way (peaks, who made them) goes to its ledger, which may be started anew at any
 * call.
 *
 * A walk can be marked and taken back to the mark, and say in words what has changed since: see alloc-model.h.
 */
#pragma once

#include "sim/mem/alloc-model.h"
#include "workloads/run/ledger.h"

/* A buffer that is alive. */
typedef struct Alive {
    AllocBlock block; /* ALLOC_NOTHING = not alive */
    guint8 tag, tier;
    guint8 alive;
    guint32 stamp; /* the last mark that it was changed under */
    int64_t bytes; /* in DDR */
    int64_t rounded_bytes;
} Alive;

/* A buffer as it was at a mark. */
typedef struct SavedAlive {
    gint32 slot;
    Alive alive;
} SavedAlive;

/*
 * Slots of buffers: most of the buffers that frames have room for never are. A buffer gets the next slot when it is
 * first allocated; walks that are copied from each other share the slots, whatever program they walk.
 */
typedef struct LedgerSlots {
    gint n_refs;
    gint32 *of; /* by buffer: 1 + slot, or 0 */
    gint32 n_buffers, n_slots;
} LedgerSlots;

/* Bytes alive. */
typedef struct HeldBytes {
    int64_t by_tag[N_MEM_TAGS];
    int64_t total, rounded, host;
    gint32 n_alive; /* buffers */
} HeldBytes;

struct LedgerWalk {
    const Program *program;
    Ledger ledger;
    AllocModel *alloc;
    LedgerSlots *slots;
    Alive *alive;       /* by slot */
    gint32 n_alive_max; /* slots that there is room for */
    HeldBytes held, held_marked;
    guint32 mark, n_marks; /* the mark that is set, 0 = none; marks ever set */
    GArray *saved;         /* SavedAlive: what has been changed since the mark */
    struct LedgerLog *log; /* who is told what is done (ledger-log.h), or NULL */
    guint call_idx, instr_idx;
    const Call *call;
    const Segment *segment;
    gint32 op;
};

LedgerSlots *ledger_slots_new(void);
LedgerSlots *ledger_slots_ref(LedgerSlots *slots);
void ledger_slots_unref(LedgerSlots *slots);

static const guint32 ALL_SHELVES = G_MAXUINT32;

/* A walk without a place. Free with ledger_walk_free(). */
LedgerWalk *walk_new(LedgerSlots *slots);

/* The start of a program, from which on its static memory is held; the allocator is empty. */
void walk_start(LedgerWalk *walk, const Program *program);

/* Goes on with a program that has the same buffers here, and maybe more of them. */
void walk_set_program(LedgerWalk *walk, const Program *program);

/* Whatever is noted next is higher than what was noted before: nothing. */
void walk_start_ledger(LedgerWalk *walk);

/* Calls first … first + n - 1, each once. FALSE with the place when the program uses a buffer wrongly. */
gboolean walk_calls(LedgerWalk *walk, guint first, guint n, GError **error);

/* After the step nothing but the static memory may be alive. */
gboolean walk_check_end(LedgerWalk *walk, GError **error);

/* Ends a ledger whose peak is known: names its operator, and bounds what the allocator reserves as ledger_run() says.
 */
void ledger_finish(Ledger *ledger, int64_t capacity_bytes);

/* What the walk has noted, after what was noted in *ledger. */
void ledger_join(Ledger *ledger, const Ledger *next);

/* Makes `to` stand where `from` does. */
void walk_copy(LedgerWalk *to, const LedgerWalk *from);

void walk_mark(LedgerWalk *walk);
void walk_rewind(LedgerWalk *walk);

/*
 * Appends words (int64_t) that say what has changed since the mark among the buffers and on some shelves of the
 * allocator (alloc-model.h): of walks from one mark, equal words mean equal walks from here on, but for these: what is
 * reserved so far, and the other shelves with the blocks that buffers have there. FALSE: there is too much to say.
 */
gboolean walk_append_change(LedgerWalk *walk, guint32 shelves, GArray *words);

/* Memory that a walk takes. */
size_t walk_size_bytes(const LedgerWalk *walk);
