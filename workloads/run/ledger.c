#include "workloads/run/ledger.h"

#include <string.h>

#include "sim/base/error.h"
#include "sim/mem/alloc-model.h"
#include "workloads/lower/layer.h"

/* A buffer that is alive. */
typedef struct Alive {
    AllocBlock block; /* ALLOC_NOTHING = not alive */
    guint8 tag, tier;
    gboolean alive;
    int64_t bytes; /* in DDR */
    int64_t rounded_bytes;
} Alive;

struct LedgerWalk {
    const Program *program;
    Ledger ledger;
    AllocModel *alloc;
    Alive *alive; /* by buffer */
    int64_t current[N_MEM_TAGS];
    int64_t total, rounded, host;
    gint32 n_alive; /* buffers */
    guint call_idx, instr_idx;
    const Call *call;
    const Segment *segment;
    gint32 op;
};

static gboolean walk_fail(const LedgerWalk *walk, const Instr *instr, const char *what, GError **error)
{
    gboolean in_frame = instr->place.arg == ARG_FRAME && walk->segment->graph != NULL;
    g_autofree char *name = in_frame ? layer_buffer_name(walk->segment->graph, instr->place.idx)
                                     : g_strdup_printf("buffer %d of argument %d", instr->place.idx, instr->place.arg);
    const char *op = walk->op >= 0 && walk->segment->graph != NULL ? graph_op(walk->segment->graph, walk->op)->name : "none";
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "program: %s, layer %d, after operator %s: %s: %s", walk->segment->name,
                walk->call->layer, op, name, what);
    return FALSE;
}

static void walk_add(LedgerWalk *walk, int tag, int64_t bytes)
{
    walk->current[tag] += bytes;
    walk->total += bytes;
}

static void note_peak(LedgerWalk *walk, const Instr *instr)
{
    Ledger *ledger = &walk->ledger;
    if (walk->total <= ledger->peak_bytes) {
        return;
    }
    ledger->peak_bytes = walk->total;
    memcpy(ledger->at_peak, walk->current, sizeof ledger->at_peak);
    ledger->peak_phase = instr->phase;
    ledger->peak_layer = walk->call->layer;
    ledger->peak_segment = walk->segment;
    ledger->peak_call = (gint32)walk->call_idx;
    ledger->peak_instr = (gint32)walk->instr_idx;
}

static gboolean walk_alloc(LedgerWalk *walk, const Instr *instr, GError **error)
{
    Alive *alive = &walk->alive[program_resolve(walk->call, instr->place)];
    if (alive->alive) {
        return walk_fail(walk, instr, "allocated while it is alive", error);
    }
    alive->alive = TRUE;
    walk->n_alive++;
    alive->tier = instr->tier;
    if (instr->tier == TIER_VIEW) {
        return TRUE;
    }
    if (instr->tier == TIER_DDR) {
        alive->bytes = instr->bytes;
        walk->host += instr->bytes;
        walk->ledger.host_peak_bytes = MAX(walk->ledger.host_peak_bytes, walk->host);
        return TRUE;
    }
    alive->block = alloc_model_take(walk->alloc, instr->stream, MAX(instr->bytes, 1));
    alive->tag = instr->tag;
    alive->rounded_bytes = alloc_model_round(MAX(instr->bytes, 1));
    walk->rounded += alive->rounded_bytes;
    walk->ledger.rounded_peak_bytes = MAX(walk->ledger.rounded_peak_bytes, walk->rounded);
    walk_add(walk, alive->tag, alloc_model_block_bytes(walk->alloc, alive->block));
    note_peak(walk, instr);
    return TRUE;
}

static gboolean walk_free(LedgerWalk *walk, const Instr *instr, GError **error)
{
    Alive *alive = &walk->alive[program_resolve(walk->call, instr->place)];
    if (!alive->alive) {
        return walk_fail(walk, instr, "freed while it is not alive", error);
    }
    walk->n_alive--;
    if (alive->tier != TIER_HBM) {
        walk->host -= alive->bytes;
        *alive = (Alive){0};
        return TRUE;
    }
    walk_add(walk, alive->tag, -alloc_model_block_bytes(walk->alloc, alive->block));
    walk->rounded -= alive->rounded_bytes;
    alloc_model_give(walk->alloc, alive->block);
    *alive = (Alive){0};
    return TRUE;
}

static gboolean walk_move(LedgerWalk *walk, const Instr *instr, GError **error)
{
    Alive *from = &walk->alive[program_resolve(walk->call, instr->place)];
    Alive *to = &walk->alive[program_resolve(walk->call, instr->to)];
    if (!from->alive || to->alive) {
        return walk_fail(walk, instr, "moved while it is not alive, or onto one that is", error);
    }
    *to = *from;
    *from = (Alive){0};
    return TRUE;
}

static gboolean walk_instr(LedgerWalk *walk, const Instr *instr, GError **error)
{
    switch ((InstrKind)instr->kind) {
    case INSTR_ALLOC:
        return walk_alloc(walk, instr, error);
    case INSTR_FREE:
        return walk_free(walk, instr, error);
    case INSTR_MOVE:
        return walk_move(walk, instr, error);
    case INSTR_COMPUTE:
        walk->op = instr->op;
        return TRUE;
    case INSTR_MARK:
        if (instr->phase == PHASE_FORWARD) {
            walk->ledger.after_forward_bytes = walk->total;
            walk->ledger.rounded_after_forward_bytes = walk->rounded;
        }
        return TRUE;
    case INSTR_COLLECTIVE:
    case INSTR_RECORD:
    case INSTR_WAIT:
    case INSTR_HOST_SYNC:
    case INSTR_HOST:
    case INSTR_VALUE:
    default:
        return TRUE;
    }
}

gboolean ledger_walk_instr(LedgerWalk *walk, guint call, guint instr, GError **error)
{
    walk->call_idx = call;
    walk->instr_idx = instr;
    walk->call = &g_array_index(walk->program->calls, Call, call);
    walk->segment = program_segment(walk->program, walk->call->segment);
    walk->op = instr == 0 ? -1 : walk->op;
    return walk_instr(walk, &g_array_index(walk->segment->instrs, Instr, instr), error);
}

/* An instruction that memory is about. What is more than taking and giving HBM is left to walk_instr(). */
typedef struct MemoryItem {
    int64_t bytes, rounded_bytes;
    gint32 instr, idx;
    gint8 arg;
    guint8 kind, stream, tag;
} MemoryItem;

enum { ITEM_TAKE, ITEM_GIVE, ITEM_OTHER };

typedef struct MemoryView {
    guint n;
    MemoryItem items[];
} MemoryView;

static gboolean memory_item(const Instr *instr, guint idx, MemoryItem *ret_item)
{
    InstrKind kind = (InstrKind)instr->kind;
    if (kind != INSTR_ALLOC && kind != INSTR_FREE && kind != INSTR_MOVE && kind != INSTR_MARK) {
        return FALSE;
    }
    gboolean takes = kind == INSTR_ALLOC && instr->tier == TIER_HBM;
    *ret_item = (MemoryItem){.bytes = MAX(instr->bytes, 1),
                             .rounded_bytes = takes ? alloc_model_round(MAX(instr->bytes, 1)) : 0,
                             .instr = (gint32)idx,
                             .idx = instr->place.idx,
                             .arg = (gint8)instr->place.arg,
                             .kind = takes ? ITEM_TAKE : kind == INSTR_FREE ? ITEM_GIVE : ITEM_OTHER,
                             .stream = instr->stream,
                             .tag = instr->tag};
    return TRUE;
}

static const MemoryView *memory_view(Segment *segment)
{
    if (segment->views[VIEW_MEMORY] == NULL) {
        MemoryView *view = g_malloc(sizeof *view + (segment->instrs->len + 1) * sizeof view->items[0]);
        view->n = 0;
        for (guint i = 0; i < segment->instrs->len; i++) {
            view->n += memory_item(&g_array_index(segment->instrs, Instr, i), i, &view->items[view->n]) ? 1 : 0;
        }
        view = g_realloc(view, sizeof *view + view->n * sizeof view->items[0]);
        segment->views[VIEW_MEMORY] = view;
        segment->free_view[VIEW_MEMORY] = g_free;
    }
    return segment->views[VIEW_MEMORY];
}

/* Takes or gives, as walk_alloc() and walk_free() do; FALSE: those shall do it, or say what is wrong. */
static inline gboolean walk_item(LedgerWalk *walk, const MemoryItem *item, const Instr *instrs, Alive *alive)
{
    if (item->kind == ITEM_TAKE && !alive->alive) {
        alive->block = alloc_model_take(walk->alloc, item->stream, item->bytes);
        alive->alive = TRUE;
        alive->tier = TIER_HBM;
        alive->tag = item->tag;
        alive->rounded_bytes = item->rounded_bytes;
        walk->n_alive++;
        walk->rounded += item->rounded_bytes;
        walk->ledger.rounded_peak_bytes = MAX(walk->ledger.rounded_peak_bytes, walk->rounded);
        walk_add(walk, item->tag, alloc_model_block_bytes(walk->alloc, alive->block));
        note_peak(walk, &instrs[item->instr]);
        return TRUE;
    }
    if (item->kind == ITEM_GIVE && alive->alive && alive->tier == TIER_HBM) {
        walk_add(walk, alive->tag, -alloc_model_block_bytes(walk->alloc, alive->block));
        walk->rounded -= alive->rounded_bytes;
        walk->n_alive--;
        alloc_model_give(walk->alloc, alive->block);
        *alive = (Alive){0};
        return TRUE;
    }
    return FALSE;
}

static gboolean walk_call(LedgerWalk *walk, guint c, GError **error)
{
    walk->call_idx = c;
    walk->call = &g_array_index(walk->program->calls, Call, c);
    walk->segment = program_segment(walk->program, walk->call->segment);
    walk->op = -1;
    const MemoryView *view = memory_view(program_segment(walk->program, walk->call->segment));
    const Instr *instrs = (const Instr *)(const void *)walk->segment->instrs->data;
    for (guint k = 0; k < view->n; k++) {
        const MemoryItem *item = &view->items[k];
        gint32 first = item->arg == ARG_FRAME ? walk->call->frame : walk->call->args[item->arg];
        walk->instr_idx = (guint)item->instr;
        gboolean done = item->kind != ITEM_OTHER && walk_item(walk, item, instrs, &walk->alive[first + item->idx]);
        if (!done && !walk_instr(walk, &instrs[item->instr], error)) {
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean walk_calls(LedgerWalk *walk, GError **error)
{
    int64_t n_times = MIN(walk->program->repeat.times, 2), n_done = 0; /* a second time shows that the first left nothing */
    for (guint c = 0; c < walk->program->calls->len; c = program_next_call(walk->program, c, n_times, &n_done)) {
        if (!walk_call(walk, c, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

/* The call and the instruction that allocated a buffer that is still alive at the end. */
static gboolean fail_leak(LedgerWalk *walk, gint32 buffer, GError **error)
{
    Instr leak = {.place = {0, buffer}};
    for (guint c = 0; c < walk->program->calls->len; c++) {
        const Call *call = &g_array_index(walk->program->calls, Call, c);
        const GArray *instrs = program_segment(walk->program, call->segment)->instrs;
        for (guint i = 0; i < instrs->len; i++) {
            const Instr *instr = &g_array_index(instrs, Instr, i);
            if (instr->kind == INSTR_ALLOC && program_resolve(call, instr->place) == buffer) {
                walk->call = call;
                walk->segment = program_segment(walk->program, call->segment);
                leak = *instr;
            }
        }
    }
    walk->op = -1;
    return walk_fail(walk, &leak, "never freed", error);
}

/* After the step nothing but the static memory may be alive. */
static gboolean check_all_freed(LedgerWalk *walk, GError **error)
{
    if (walk->n_alive == 0) {
        return TRUE;
    }
    for (gint32 b = 0; b < walk->program->n_buffers; b++) {
        if (walk->alive[b].alive) {
            return fail_leak(walk, b, error);
        }
    }
    return TRUE;
}

/* Starts a walk over a program; the allocator is empty, no buffer is alive. */
static void walk_start(LedgerWalk *walk, const Program *program)
{
    int64_t static_bytes = 0;
    walk->program = program;
    walk->op = -1;
    walk->n_alive = 0;
    walk->ledger = (Ledger){.peak_layer = -1, .peak_op = -1, .peak_call = -1, .peak_instr = -1};
    for (int i = 0; i < N_MEM_TAGS; i++) {
        walk->current[i] = program->static_bytes[i];
        static_bytes += program->static_bytes[i];
    }
    walk->host = walk->ledger.host_peak_bytes = program->host_static_bytes;
    walk->total = walk->rounded = static_bytes;
    walk->ledger.peak_bytes = walk->ledger.rounded_peak_bytes = static_bytes;
    memcpy(walk->ledger.at_peak, walk->current, sizeof walk->current);
    if (program->expandable_segments) {
        alloc_model_make_expandable(walk->alloc);
    }
    alloc_model_take(walk->alloc, STREAM_COMPUTE, static_bytes);
}

LedgerWalk *ledger_walk_new(const Program *program)
{
    LedgerWalk *walk = g_new0(LedgerWalk, 1);
    walk->alloc = alloc_model_new(N_STREAMS, 0);
    walk->alive = g_new0(Alive, program->n_buffers);
    walk_start(walk, program);
    return walk;
}

void ledger_walk_free(LedgerWalk *walk)
{
    if (walk != NULL) {
        alloc_model_free(walk->alloc);
        g_free(walk->alive);
        g_free(walk);
    }
}

/* A walk to use again: between programs its allocator may hold anything, its buffers are all dead. */
struct LedgerMemo {
    LedgerWalk walk;
    gint32 n_alive;
};

LedgerMemo *ledger_memo_new(void)
{
    LedgerMemo *memo = g_new0(LedgerMemo, 1);
    memo->walk.alloc = alloc_model_new(N_STREAMS, 0);
    return memo;
}

void ledger_memo_free(LedgerMemo *memo)
{
    if (memo != NULL) {
        alloc_model_free(memo->walk.alloc);
        g_free(memo->walk.alive);
        g_free(memo);
    }
}

const int64_t *ledger_walk_held(const LedgerWalk *walk)
{
    return walk->current;
}

/* The operator that runs next after an instruction of a segment, or -1. */
static gint32 next_op(const Segment *segment, gint32 instr)
{
    for (guint i = (guint)instr + 1; segment != NULL && i < segment->instrs->len; i++) {
        const Instr *next = &g_array_index(segment->instrs, Instr, i);
        if (next->kind == INSTR_VALUE && (next->action == VALUE_FORWARD || next->action == VALUE_BACKWARD)) {
            return next->op;
        }
    }
    return -1;
}

gboolean ledger_run_memo(LedgerMemo *memo, const Program *program, int64_t capacity_bytes, Ledger *ret_ledger, GError **error)
{
    LedgerWalk *walk = &memo->walk;
    if (memo->n_alive < program->n_buffers) {
        g_free(walk->alive);
        memo->n_alive = program->n_buffers;
        walk->alive = g_new0(Alive, memo->n_alive);
    }
    alloc_model_reset(walk->alloc);
    walk_start(walk, program);
    if (!walk_calls(walk, error) || !check_all_freed(walk, error)) {
        memset(walk->alive, 0, sizeof *walk->alive * (size_t)memo->n_alive);
        return FALSE;
    }
    *ret_ledger = walk->ledger;
    ret_ledger->peak_op = next_op(ret_ledger->peak_segment, ret_ledger->peak_instr);
    /* past the capacity the allocator gives cached memory back and tries again; what is alive it must hold */
    ret_ledger->reserved_bytes = alloc_model_stats(walk->alloc)->reserved_bytes_max;
    if (capacity_bytes > 0 && ret_ledger->reserved_bytes > capacity_bytes) {
        ret_ledger->reserved_bytes = MAX(capacity_bytes, ret_ledger->peak_bytes);
    }
    return TRUE;
}

gboolean ledger_run(const Program *program, int64_t capacity_bytes, Ledger *ret_ledger, GError **error)
{
    g_autoptr(LedgerMemo) memo = ledger_memo_new();
    return ledger_run_memo(memo, program, capacity_bytes, ret_ledger, error);
}

char *ledger_peak_place(const Ledger *ledger)
{
    GString *text = g_string_new(program_phase_name(ledger->peak_phase));
    if (ledger->peak_segment == NULL) {
        g_string_assign(text, "between steps");
        return g_string_free(text, FALSE);
    }
    if (ledger->peak_layer >= 0) {
        g_string_append_printf(text, " of layer %d", ledger->peak_layer);
    } else {
        g_string_append_printf(text, " (%s)", ledger->peak_segment->name);
    }
    if (ledger->peak_op >= 0 && ledger->peak_segment->graph != NULL) {
        g_string_append_printf(text, ", %s", graph_op(ledger->peak_segment->graph, ledger->peak_op)->name);
    }
    return g_string_free(text, FALSE);
}
