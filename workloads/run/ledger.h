/*
 * Ledger: the program in memory.
 *
 * Walks the instructions in host order, as a caching allocator sees them, and keeps the bytes alive by tag, the peak, who
 * made it, and what the allocator had to reserve. Durations play no part.
 */
#pragma once

#include "workloads/lower/program.h"

typedef struct Ledger {
    int64_t peak_bytes, after_forward_bytes, reserved_bytes;
    int64_t rounded_peak_bytes, rounded_after_forward_bytes; /* requests rounded to 512 bytes, whatever block they got */
    int64_t at_peak[N_MEM_TAGS];
    int64_t host_peak_bytes; /* pinned host memory */
    Phase peak_phase;
    gint32 peak_layer; /* -1 = outside the layers */
    gint32 peak_op;    /* operator of peak_segment's graph that runs next, or -1 */
    const Segment *peak_segment;
    gint32 peak_call, peak_instr; /* in the list of calls, in the segment; -1 = before the first */
} Ledger;

/*
 * A walk under way, for whoever goes through the program himself: ledger_walk_instr() takes the next instruction in host
 * order. Borrows the program.
 */
typedef struct LedgerWalk LedgerWalk;
LedgerWalk *ledger_walk_new(const Program *program);
void ledger_walk_free(LedgerWalk *walk);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(LedgerWalk, ledger_walk_free)

/* The instr-th instruction of a call. FALSE with the place when it uses a buffer wrongly. */
gboolean ledger_walk_instr(LedgerWalk *walk, guint call, guint instr, GError **error);

/* Bytes alive by tag, blocks of the allocator (borrowed). */
const int64_t *ledger_walk_held(const LedgerWalk *walk);

/*
 * What ledgers of one session remember for each other. Serves one thread.
 *
 * Runs of calls that programs have in common (program.h) are walked once from each moment of memory at which they begin. A
 * moment is known by its history: the same start, the same runs, and between them parts that left the same changes in the
 * allocator and among the buffers. Where such a part begins a walk waits, goes through the calls of a program, and is taken
 * back. So a program costs what its own calls cost, and the runs behind them once for every state that these leave: those of
 * different loss chunks mostly leave the same one, or one that looks the same some calls later (ledger-ending.h).
 *
 * Segments of programs must outlive what is remembered of them.
 */
typedef struct LedgerMemo LedgerMemo;
LedgerMemo *ledger_memo_new(void);
void ledger_memo_free(LedgerMemo *memo);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(LedgerMemo, ledger_memo_free)

/* Memory that it takes, as far as it grows with the number of programs; forgets everything. */
size_t ledger_memo_size_bytes(const LedgerMemo *memo);
void ledger_memo_clear(LedgerMemo *memo);

/*
 * Of programs that end in runs: those for which all that these note was known, those for which it was known after some of
 * their calls, those that went on from a log (ledger-log.h), of these the ones for which it did not do, and the calls that
 * were walked.
 */
typedef struct LedgerEndingCounts {
    int64_t n_known, n_met, n_replayed, n_odd, n_calls_walked;
} LedgerEndingCounts;
const LedgerEndingCounts *ledger_memo_ending_counts(const LedgerMemo *memo);

/*
 * Fills a ledger. capacity_bytes bounds what the allocator may reserve before it gives cached memory back (0 = no bound).
 * FALSE with the place when the program uses a buffer wrongly: freed twice, allocated twice, never freed.
 */
gboolean ledger_run(const Program *program, int64_t capacity_bytes, Ledger *ret_ledger, GError **error);

/* The same with a memo, which makes it faster and changes nothing else. */
gboolean ledger_run_memo(LedgerMemo *memo, const Program *program, int64_t capacity_bytes, Ledger *ret_ledger, GError **error);

/* "backward of layer 7, mlp.down_proj"; caller frees. */
char *ledger_peak_place(const Ledger *ledger);
