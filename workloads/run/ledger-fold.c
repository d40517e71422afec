#include <string.h>

#include "sim/base/intern.h"
#include "workloads/run/ledger-ending.h"

/* Walks that stand somewhere, and the memory that they may take together. */
enum { STANDING_MAX = 16, STANDING_BYTES_MAX = 32 << 20 };

/* What leads to a node. */
enum { FROM_START, FROM_RUN, FROM_CHANGE };

/* A moment of memory, known by how it comes about: from the start of a program, by a run from another node, or by what
 * a part that is no run has changed there. Its number is that of these words. */
typedef struct Node {
    gboolean is_known; /* a run to it has been walked: what was noted on the way */
    Ledger ledger;     /* peak_call: in the run */
} Node;

/* A walk that waits at a node for a part that is no run. */
typedef struct Standing {
    guint32 node;
    LedgerWalk *walk;
    uint64_t last_use;
} Standing;

struct LedgerMemo {
    Intern *names; /* of nodes */
    GArray *nodes; /* Node, by number */
    LedgerEndings *endings;
    LedgerSlots *slots;
    GArray *standing;
    GPtrArray *spare;       /* LedgerWalk: nowhere */
    GArray *words, *pieces; /* scratch */
    uint64_t n_uses;
};

/* A fold of one program. */
typedef struct LedgerFold {
    LedgerMemo *memo;
    const Program *program;
    guint32 node;       /* where it is */
    LedgerWalk *walk;   /* that stands there; NULL: nobody does */
    gboolean is_own;    /* the walk is the fold's; else it waits at `base` and has gone on from there by a change */
    gboolean walks_all; /* known runs are walked all the same, for walks are missing */
    Ledger ledger;
} LedgerFold;

static void drop_walk(void *walk)
{
    ledger_walk_free(walk);
}

LedgerMemo *ledger_memo_new(void)
{
    LedgerMemo *memo = g_new0(LedgerMemo, 1);
    memo->names = intern_new();
    memo->nodes = g_array_new(FALSE, TRUE, sizeof(Node));
    memo->endings = ledger_endings_new();
    memo->slots = ledger_slots_new();
    memo->standing = g_array_new(FALSE, FALSE, sizeof(Standing));
    memo->spare = g_ptr_array_new_with_free_func(drop_walk);
    memo->words = g_array_new(FALSE, FALSE, sizeof(int64_t));
    memo->pieces = g_array_new(FALSE, FALSE, sizeof(LedgerPiece));
    return memo;
}

void ledger_memo_clear(LedgerMemo *memo)
{
    intern_clear(memo->names);
    g_array_set_size(memo->nodes, 0);
    ledger_endings_clear(memo->endings);
    for (guint i = 0; i < memo->standing->len; i++) {
        ledger_walk_free(g_array_index(memo->standing, Standing, i).walk);
    }
    g_array_set_size(memo->standing, 0);
    g_ptr_array_set_size(memo->spare, 0);
}

void ledger_memo_free(LedgerMemo *memo)
{
    if (memo != NULL) {
        ledger_memo_clear(memo);
        intern_free(memo->names);
        g_array_unref(memo->nodes);
        ledger_endings_free(memo->endings);
        ledger_slots_unref(memo->slots);
        g_array_unref(memo->standing);
        g_ptr_array_unref(memo->spare);
        g_array_unref(memo->words);
        g_array_unref(memo->pieces);
        g_free(memo);
    }
}

size_t ledger_memo_size_bytes(const LedgerMemo *memo)
{
    return intern_size_bytes(memo->names) + memo->nodes->len * sizeof(Node) + ledger_endings_size_bytes(memo->endings);
}

const LedgerEndingCounts *ledger_memo_ending_counts(const LedgerMemo *memo)
{
    return ledger_endings_counts(memo->endings);
}

/* ---- walks ---- */

static LedgerWalk *take_walk(LedgerMemo *memo)
{
    return memo->spare->len > 0 ? g_ptr_array_steal_index_fast(memo->spare, memo->spare->len - 1)
                                : walk_new(memo->slots);
}

static void give_walk(LedgerMemo *memo, LedgerWalk *walk)
{
    enum { SPARE_MAX = 2 };
    if (memo->spare->len < SPARE_MAX) {
        g_ptr_array_add(memo->spare, walk);
    } else {
        ledger_walk_free(walk);
    }
}

static LedgerWalk *find_standing(LedgerMemo *memo, guint32 node)
{
    for (guint i = memo->standing->len; i-- > 0;) {
        Standing *standing = &g_array_index(memo->standing, Standing, i);
        if (standing->node == node) {
            standing->last_use = ++memo->n_uses;
            return standing->walk;
        }
    }
    return NULL;
}

static void drop_standing(LedgerMemo *memo, guint i)
{
    give_walk(memo, g_array_index(memo->standing, Standing, i).walk);
    g_array_remove_index_fast(memo->standing, i);
}

static void drop_standing_at(LedgerMemo *memo, guint32 node)
{
    for (guint i = memo->standing->len; i-- > 0;) {
        if (g_array_index(memo->standing, Standing, i).node == node) {
            drop_standing(memo, i);
        }
    }
}

/* A walk waits at a node from now on; those that nobody has asked for longest go. */
static void leave_standing(LedgerMemo *memo, guint32 node, LedgerWalk *walk)
{
    size_t n_bytes = walk_size_bytes(walk);
    drop_standing_at(memo, node);
    for (guint i = 0; i < memo->standing->len; i++) {
        n_bytes += walk_size_bytes(g_array_index(memo->standing, Standing, i).walk);
    }
    while (memo->standing->len > 0 && (memo->standing->len >= STANDING_MAX || n_bytes > STANDING_BYTES_MAX)) {
        guint oldest = 0;
        for (guint i = 1; i < memo->standing->len; i++) {
            const Standing *standing = &g_array_index(memo->standing, Standing, i);
            oldest = standing->last_use < g_array_index(memo->standing, Standing, oldest).last_use ? i : oldest;
        }
        n_bytes -= walk_size_bytes(g_array_index(memo->standing, Standing, oldest).walk);
        drop_standing(memo, oldest);
    }
    Standing standing = {node, walk, ++memo->n_uses};
    g_array_append_val(memo->standing, standing);
}

/* ---- nodes ---- */

static guint32 name_words(LedgerMemo *memo)
{
    gboolean is_new;
    guint32 node = intern_bytes(memo->names, memo->words->data, memo->words->len * sizeof(int64_t), &is_new);
    if (is_new) {
        g_array_set_size(memo->nodes, node + 1);
    }
    return node;
}

static guint32 start_node(LedgerMemo *memo, const Program *program)
{
    int64_t head[] = {FROM_START, program->expandable_segments, program->host_static_bytes};
    g_array_set_size(memo->words, 0);
    g_array_append_vals(memo->words, head, G_N_ELEMENTS(head));
    g_array_append_vals(memo->words, program->static_bytes, N_MEM_TAGS);
    return name_words(memo);
}

static guint32 run_node(LedgerMemo *memo, guint32 from, gint64 run)
{
    int64_t words[] = {FROM_RUN, from, run};
    g_array_set_size(memo->words, 0);
    g_array_append_vals(memo->words, words, G_N_ELEMENTS(words));
    return name_words(memo);
}

static int64_t reserved_of(const LedgerWalk *walk)
{
    return alloc_model_stats(walk->alloc)->reserved_bytes_max;
}

/* The moment to which a part has led that is no run: exactly that. */
static guint32 change_node(LedgerMemo *memo, guint32 from, LedgerWalk *walk)
{
    int64_t words[] = {FROM_CHANGE, from, reserved_of(walk)};
    g_array_set_size(memo->words, 0);
    g_array_append_vals(memo->words, words, G_N_ELEMENTS(words));
    if (!walk_append_change(walk, ALL_SHELVES, memo->words)) {
        int64_t other = -(int64_t)++memo->n_uses; /* like nothing else */
        g_array_append_val(memo->words, other);
    }
    return name_words(memo);
}

/* ---- a program ---- */

/* Pieces in the order in which they are walked; the repeated block twice: the second time shows that the first left
 * nothing. */
static void find_pieces(LedgerMemo *memo, const Program *program)
{
    const CallRepeat *repeat = &program->repeat;
    guint r = 0, n_calls = program->calls->len, repeat_end = repeat->first + repeat->n, first_piece = 0;
    g_array_set_size(memo->pieces, 0);
    for (guint c = 0; c < n_calls;) {
        const ProgramRun *run = r < program->runs->len ? &g_array_index(program->runs, ProgramRun, r) : NULL;
        guint end = run != NULL && run->first > c ? run->first : n_calls;
        LedgerPiece piece = {c, end - c, -1};
        if (repeat->times > 0 && c == repeat->first) {
            first_piece = memo->pieces->len;
        }
        if (run != NULL && run->first == c) {
            piece = (LedgerPiece){c, run->n, run->id};
            r++;
        } else if (repeat->times > 0 && c < repeat->first && end > repeat->first) {
            piece.n = repeat->first - c;
        } else if (repeat->times > 0 && c < repeat_end && end > repeat_end) {
            piece.n = repeat_end - c;
        }
        g_array_append_val(memo->pieces, piece);
        c += piece.n;
        if (repeat->times > 1 && c == repeat_end) {
            for (guint i = first_piece, n = memo->pieces->len; i < n; i++) {
                LedgerPiece again = g_array_index(memo->pieces, LedgerPiece, i);
                g_array_append_val(memo->pieces, again);
            }
        }
    }
}

/* Nobody needs the fold's walk any more: it goes, or goes back to where it waits. */
static void leave_walk(LedgerFold *fold)
{
    if (fold->walk != NULL && fold->is_own) {
        give_walk(fold->memo, fold->walk);
    } else if (fold->walk != NULL) {
        walk_rewind(fold->walk);
    }
    fold->walk = NULL;
}

/* The fold's walk goes on for good: a copy of the one that waits. */
static void own_walk(LedgerFold *fold)
{
    if (!fold->is_own) {
        LedgerWalk *copy = take_walk(fold->memo);
        walk_copy(copy, fold->walk);
        walk_rewind(fold->walk);
        fold->walk = copy;
        fold->is_own = TRUE;
    }
}

static gboolean fold_run(LedgerFold *fold, const LedgerPiece *piece, GError **error)
{
    guint32 next = run_node(fold->memo, fold->node, piece->run);
    Node *node = &g_array_index(fold->memo->nodes, Node, next);
    if (!node->is_known || (fold->walks_all && fold->walk != NULL)) {
        own_walk(fold);
        walk_set_program(fold->walk, fold->program);
        walk_start_ledger(fold->walk);
        if (!walk_calls(fold->walk, piece->first, piece->n, error)) {
            return FALSE;
        }
        node->is_known = TRUE;
        node->ledger = fold->walk->ledger;
        node->ledger.peak_call -= (gint32)piece->first;
    } else {
        leave_walk(fold);
    }
    Ledger ledger = node->ledger;
    ledger.peak_call += (gint32)piece->first;
    ledger_join(&fold->ledger, &ledger);
    fold->node = next;
    return TRUE;
}

/* Calls of this program alone: walked from a walk that waits before them, and goes back there. */
static gboolean fold_calls(LedgerFold *fold, const LedgerPiece *piece, GError **error)
{
    LedgerMemo *memo = fold->memo;
    if (fold->walk == NULL) {
        fold->walk = find_standing(memo, fold->node);
    } else {
        own_walk(fold);
        leave_standing(memo, fold->node, fold->walk);
    }
    fold->is_own = FALSE;
    walk_set_program(fold->walk, fold->program);
    walk_start_ledger(fold->walk);
    walk_mark(fold->walk);
    if (!walk_calls(fold->walk, piece->first, piece->n, error)) {
        return FALSE;
    }
    ledger_join(&fold->ledger, &fold->walk->ledger);
    return TRUE;
}

/* Whether there is a walk for every piece that needs one. */
static gboolean has_walk(const LedgerFold *fold, const LedgerPiece *piece)
{
    if (fold->walk != NULL || (piece->run < 0 && find_standing(fold->memo, fold->node) != NULL)) {
        return TRUE;
    }
    if (piece->run < 0) {
        return FALSE;
    }
    guint32 next = run_node(fold->memo, fold->node, piece->run);
    return g_array_index(fold->memo->nodes, Node, next).is_known;
}

static void fold_start(LedgerFold *fold)
{
    LedgerWalk *walk = fold->walks_all ? take_walk(fold->memo) : NULL;
    fold->node = start_node(fold->memo, fold->program);
    fold->walk = walk;
    fold->is_own = TRUE;
    fold->ledger =
        (Ledger){.peak_layer = -1, .peak_op = -1, .peak_call = -1, .peak_instr = -1, .after_forward_bytes = -1};
    memcpy(fold->ledger.at_peak, fold->program->static_bytes, sizeof fold->ledger.at_peak);
    for (int i = 0; i < N_MEM_TAGS; i++) {
        fold->ledger.peak_bytes += fold->program->static_bytes[i];
    }
    fold->ledger.rounded_peak_bytes = fold->ledger.peak_bytes;
    fold->ledger.host_peak_bytes = fold->program->host_static_bytes;
    if (walk != NULL) {
        walk_start(walk, fold->program);
        fold->ledger.reserved_bytes = walk->ledger.reserved_bytes;
    }
}

/* The last runs, behind calls that have been walked: these are walked again where a log does not do (ledger-ending.h).
 */
static gboolean fold_ending(LedgerFold *fold, const LedgerPiece *calls, GError **error)
{
    const GArray *pieces = fold->memo->pieces;
    guint n_runs = pieces->len - 1 - (guint)(calls - &g_array_index(pieces, LedgerPiece, 0));
    gboolean is_done = FALSE;
    for (int attempt = 0; attempt < 2 && !is_done; attempt++) {
        if (attempt > 0) {
            leave_walk(fold);
        }
        if ((attempt > 0 && !fold_calls(fold, calls, error)) ||
            !ledger_endings_run(fold->memo->endings, fold->walk, fold->node, calls + 1, n_runs, attempt == 0,
                                &fold->ledger, &is_done, error)) {
            return FALSE;
        }
    }
    leave_walk(fold);
    return TRUE;
}

/* Piece by piece. *ret_missing: a walk is missing that an earlier program would have left; nothing was found out. */
static gboolean fold_pieces(LedgerFold *fold, gboolean *ret_missing, GError **error)
{
    const GArray *pieces = fold->memo->pieces;
    guint last = pieces->len; /* the last piece that is no run */
    *ret_missing = FALSE;
    fold_start(fold);
    while (last > 0 && g_array_index(pieces, LedgerPiece, last - 1).run >= 0) {
        last--;
    }
    for (guint i = 0; i < pieces->len; i++) {
        const LedgerPiece *piece = &g_array_index(pieces, LedgerPiece, i);
        if (!has_walk(fold, piece)) {
            *ret_missing = TRUE;
            return TRUE;
        }
        if (piece->run >= 0) {
            if (!fold_run(fold, piece, error)) {
                return FALSE;
            }
        } else if (!fold_calls(fold, piece, error)) {
            return FALSE;
        } else if (i + 1 == last && last < pieces->len) {
            return fold_ending(fold, piece, error);
        } else {
            fold->node = change_node(fold->memo, fold->node, fold->walk);
        }
    }
    if (fold->walk == NULL || walk_check_end(fold->walk, error)) {
        leave_walk(fold);
        return TRUE;
    }
    return FALSE;
}

gboolean ledger_run_memo(LedgerMemo *memo, const Program *program, int64_t capacity_bytes, Ledger *ret_ledger,
                         GError **error)
{
    LedgerFold fold = {.memo = memo, .program = program};
    gboolean is_missing = TRUE;
    if (program->runs->len == 0) {
        return ledger_run(program, capacity_bytes, ret_ledger, error);
    }
    find_pieces(memo, program);
    for (int attempt = 0; attempt < 2 && is_missing; attempt++) {
        fold.walks_all = attempt > 0;
        if (!fold_pieces(&fold, &is_missing, error)) {
            if (fold.walk != NULL && fold.is_own) {
                ledger_walk_free(fold.walk);
            }
            ledger_memo_clear(memo); /* walks stand where nothing is right */
            return FALSE;
        }
    }
    g_assert(!is_missing);
    *ret_ledger = fold.ledger;
    ledger_finish(ret_ledger, capacity_bytes);
    return TRUE;
}
