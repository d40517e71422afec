#include "workloads/run/ledger.h"

#include <string.h>

#include "sim/base/error.h"
#include "workloads/lower/layer.h"
#include "workloads/run/ledger-log.h"

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

/* Room for one more slot at least. */
static void grow_alive(LedgerWalk *walk)
{
    enum { SLOTS_MIN = 1024 };
    gint32 n = MAX(SLOTS_MIN, 2 * walk->n_alive_max);
    walk->alive = g_renew(Alive, walk->alive, n);
    memset(walk->alive + walk->n_alive_max, 0, sizeof *walk->alive * (size_t)(n - walk->n_alive_max));
    walk->n_alive_max = n;
}

/* A buffer that is about to change. */
static inline Alive *edit_alive(LedgerWalk *walk, gint32 buffer)
{
    LedgerSlots *slots = walk->slots;
    gint32 slot = slots->of[buffer] - 1;
    if (slot < 0) {
        slot = slots->n_slots++;
        slots->of[buffer] = slot + 1;
    }
    while (slot >= walk->n_alive_max) {
        grow_alive(walk);
    }
    Alive *alive = &walk->alive[slot];
    if (alive->stamp != walk->mark && walk->mark != 0) {
        SavedAlive saved = {slot, *alive};
        g_array_append_val(walk->saved, saved);
        alive->stamp = walk->mark;
    }
    return alive;
}

static void walk_add(LedgerWalk *walk, int tag, int64_t bytes)
{
    walk->held.by_tag[tag] += bytes;
    walk->held.total += bytes;
}

static void note_peak(LedgerWalk *walk, const Instr *instr)
{
    Ledger *ledger = &walk->ledger;
    if (walk->held.total <= ledger->peak_bytes) {
        return;
    }
    ledger->peak_bytes = walk->held.total;
    memcpy(ledger->at_peak, walk->held.by_tag, sizeof ledger->at_peak);
    ledger->peak_phase = instr->phase;
    ledger->peak_layer = walk->call->layer;
    ledger->peak_segment = walk->segment;
    ledger->peak_call = (gint32)walk->call_idx;
    ledger->peak_instr = (gint32)walk->instr_idx;
}

static inline void tell_take(LedgerWalk *walk, const Alive *alive, int64_t bytes)
{
    if (walk->log != NULL) {
        ledger_log_take(walk->log, walk, (gint32)(alive - walk->alive), bytes);
    }
}

static inline void tell_give(LedgerWalk *walk, const Alive *alive)
{
    if (walk->log != NULL) {
        ledger_log_give(walk->log, walk, (gint32)(alive - walk->alive));
    }
}

static gboolean walk_alloc(LedgerWalk *walk, const Instr *instr, GError **error)
{
    Alive *alive = edit_alive(walk, program_resolve(walk->call, instr->place));
    if (alive->alive) {
        return walk_fail(walk, instr, "allocated while it is alive", error);
    }
    alive->alive = TRUE;
    walk->held.n_alive++;
    alive->tier = instr->tier;
    if (instr->tier == TIER_VIEW) {
        return TRUE;
    }
    if (instr->tier == TIER_DDR) {
        alive->bytes = instr->bytes;
        walk->held.host += instr->bytes;
        walk->ledger.host_peak_bytes = MAX(walk->ledger.host_peak_bytes, walk->held.host);
        return TRUE;
    }
    alive->block = alloc_model_take(walk->alloc, instr->stream, MAX(instr->bytes, 1));
    if (alive->block == ALLOC_FAILED) {
        return walk_fail(walk, instr, "no free block is large enough", error);
    }
    alive->tag = instr->tag;
    alive->rounded_bytes = alloc_model_round(MAX(instr->bytes, 1));
    walk->held.rounded += alive->rounded_bytes;
    walk->ledger.rounded_peak_bytes = MAX(walk->ledger.rounded_peak_bytes, walk->held.rounded);
    walk_add(walk, alive->tag, alloc_model_block_bytes(walk->alloc, alive->block));
    note_peak(walk, instr);
    tell_take(walk, alive, MAX(instr->bytes, 1));
    return TRUE;
}

static gboolean walk_free(LedgerWalk *walk, const Instr *instr, GError **error)
{
    Alive *alive = edit_alive(walk, program_resolve(walk->call, instr->place));
    if (!alive->alive) {
        return walk_fail(walk, instr, "freed while it is not alive", error);
    }
    walk->held.n_alive--;
    if (alive->tier != TIER_HBM) {
        walk->held.host -= alive->bytes;
        *alive = (Alive){.stamp = alive->stamp};
        return TRUE;
    }
    tell_give(walk, alive);
    walk_add(walk, alive->tag, -alloc_model_block_bytes(walk->alloc, alive->block));
    walk->held.rounded -= alive->rounded_bytes;
    alloc_model_give(walk->alloc, alive->block);
    *alive = (Alive){.stamp = alive->stamp};
    return TRUE;
}

static gboolean walk_move(LedgerWalk *walk, const Instr *instr, GError **error)
{
    edit_alive(walk, program_resolve(walk->call, instr->to)); /* there is room for both before either is looked at */
    Alive *from = edit_alive(walk, program_resolve(walk->call, instr->place));
    Alive *to = edit_alive(walk, program_resolve(walk->call, instr->to));
    if (!from->alive || to->alive) {
        return walk_fail(walk, instr, "moved while it is not alive, or onto one that is", error);
    }
    guint32 stamp = to->stamp;
    if (walk->log != NULL) {
        ledger_log_move(walk->log, (gint32)(from - walk->alive), (gint32)(to - walk->alive));
    }
    *to = *from;
    to->stamp = stamp;
    *from = (Alive){.stamp = from->stamp};
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
            walk->ledger.after_forward_bytes = walk->held.total;
            walk->ledger.rounded_after_forward_bytes = walk->held.rounded;
            if (walk->log != NULL) {
                ledger_log_mark(walk->log);
            }
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
        walk->held.n_alive++;
        walk->held.rounded += item->rounded_bytes;
        walk->ledger.rounded_peak_bytes = MAX(walk->ledger.rounded_peak_bytes, walk->held.rounded);
        walk_add(walk, item->tag, alloc_model_block_bytes(walk->alloc, alive->block));
        note_peak(walk, &instrs[item->instr]);
        tell_take(walk, alive, item->bytes);
        return TRUE;
    }
    if (item->kind == ITEM_GIVE && alive->alive && alive->tier == TIER_HBM) {
        tell_give(walk, alive);
        walk_add(walk, alive->tag, -alloc_model_block_bytes(walk->alloc, alive->block));
        walk->held.rounded -= alive->rounded_bytes;
        walk->held.n_alive--;
        alloc_model_give(walk->alloc, alive->block);
        *alive = (Alive){.stamp = alive->stamp};
        return TRUE;
    }
    return FALSE;
}

static inline gint32 item_buffer(const Call *call, const MemoryItem *item)
{
    return item->idx + (item->arg == ARG_FRAME ? call->frame : call->args[item->arg]);
}

static gboolean walk_call(LedgerWalk *walk, guint c, GError **error)
{
    enum { AHEAD = 8 }; /* each layer has slots of its own: nothing of them is near when it is asked for */
    walk->call_idx = c;
    walk->call = &g_array_index(walk->program->calls, Call, c);
    walk->segment = program_segment(walk->program, walk->call->segment);
    walk->op = -1;
    const MemoryView *view = memory_view(program_segment(walk->program, walk->call->segment));
    const Instr *instrs = (const Instr *)(const void *)walk->segment->instrs->data;
    for (guint k = 0; k < view->n; k++) {
        const MemoryItem *item = &view->items[k];
        if (k + AHEAD < view->n) {
            __builtin_prefetch(&walk->slots->of[item_buffer(walk->call, item + AHEAD)]);
        }
        walk->instr_idx = (guint)item->instr;
        gboolean done = item->kind != ITEM_OTHER && walk_item(walk, item, instrs, edit_alive(walk, item_buffer(walk->call, item)));
        if (!done && !walk_instr(walk, &instrs[item->instr], error)) {
            return FALSE;
        }
    }
    walk->ledger.reserved_bytes = alloc_model_stats(walk->alloc)->reserved_bytes_max;
    return TRUE;
}

gboolean walk_calls(LedgerWalk *walk, guint first, guint n, GError **error)
{
    for (guint c = first; c < first + n; c++) {
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

gboolean walk_check_end(LedgerWalk *walk, GError **error)
{
    if (walk->held.n_alive == 0) {
        return TRUE;
    }
    for (gint32 b = 0; b < walk->program->n_buffers; b++) {
        gint32 slot = walk->slots->of[b] - 1;
        if (slot >= 0 && slot < walk->n_alive_max && walk->alive[slot].alive) {
            return fail_leak(walk, b, error);
        }
    }
    return TRUE;
}

void walk_start_ledger(LedgerWalk *walk)
{
    walk->ledger = (Ledger){.peak_bytes = -1, .rounded_peak_bytes = -1, .host_peak_bytes = -1, .after_forward_bytes = -1, .peak_layer = -1,
                            .peak_op = -1, .peak_call = -1, .peak_instr = -1};
}

LedgerSlots *ledger_slots_new(void)
{
    LedgerSlots *slots = g_new0(LedgerSlots, 1);
    slots->n_refs = 1;
    return slots;
}

LedgerSlots *ledger_slots_ref(LedgerSlots *slots)
{
    slots->n_refs++;
    return slots;
}

void ledger_slots_unref(LedgerSlots *slots)
{
    if (--slots->n_refs == 0) {
        g_free(slots->of);
        g_free(slots);
    }
}

void walk_set_program(LedgerWalk *walk, const Program *program)
{
    LedgerSlots *slots = walk->slots;
    walk->program = program;
    if (slots->n_buffers < program->n_buffers) {
        slots->of = g_renew(gint32, slots->of, program->n_buffers);
        memset(slots->of + slots->n_buffers, 0, sizeof *slots->of * (size_t)(program->n_buffers - slots->n_buffers));
        slots->n_buffers = program->n_buffers;
    }
}

void walk_start(LedgerWalk *walk, const Program *program)
{
    int64_t static_bytes = 0;
    for (int i = 0; i < N_MEM_TAGS; i++) {
        static_bytes += program->static_bytes[i];
    }
    walk->mark = 0;
    if (walk->n_alive_max > 0) {
        memset(walk->alive, 0, sizeof *walk->alive * (size_t)walk->n_alive_max);
    }
    walk_set_program(walk, program);
    walk->op = -1;
    walk->held = (HeldBytes){.total = static_bytes, .rounded = static_bytes, .host = program->host_static_bytes};
    memcpy(walk->held.by_tag, program->static_bytes, sizeof walk->held.by_tag);
    walk_start_ledger(walk);
    walk->ledger.peak_bytes = walk->ledger.rounded_peak_bytes = static_bytes;
    walk->ledger.host_peak_bytes = program->host_static_bytes;
    memcpy(walk->ledger.at_peak, program->static_bytes, sizeof walk->ledger.at_peak);
    alloc_model_reset(walk->alloc);
    if (program->expandable_segments) {
        alloc_model_make_expandable(walk->alloc);
    }
    alloc_model_take(walk->alloc, STREAM_COMPUTE, static_bytes);
    walk->ledger.reserved_bytes = alloc_model_stats(walk->alloc)->reserved_bytes_max;
}

LedgerWalk *walk_new(LedgerSlots *slots)
{
    LedgerWalk *walk = g_new0(LedgerWalk, 1);
    walk->slots = ledger_slots_ref(slots);
    walk->alloc = alloc_model_new(N_STREAMS, 0);
    walk->saved = g_array_new(FALSE, FALSE, sizeof(SavedAlive));
    return walk;
}

LedgerWalk *ledger_walk_new(const Program *program)
{
    LedgerSlots *slots = ledger_slots_new();
    LedgerWalk *walk = walk_new(slots);
    ledger_slots_unref(slots);
    walk_start(walk, program);
    return walk;
}

void ledger_walk_free(LedgerWalk *walk)
{
    if (walk != NULL) {
        alloc_model_free(walk->alloc);
        g_array_unref(walk->saved);
        ledger_slots_unref(walk->slots);
        g_free(walk->alive);
        g_free(walk);
    }
}

size_t walk_size_bytes(const LedgerWalk *walk)
{
    return sizeof *walk + sizeof *walk->alive * (size_t)walk->n_alive_max + alloc_model_size_bytes(walk->alloc);
}

void walk_copy(LedgerWalk *to, const LedgerWalk *from)
{
    gint32 n = MIN(from->slots->n_slots, from->n_alive_max);
    g_assert(to->slots == from->slots);
    while (to->n_alive_max < n) {
        grow_alive(to);
    }
    if (n > 0) {
        memcpy(to->alive, from->alive, sizeof *to->alive * (size_t)n);
    }
    if (to->n_alive_max > n) {
        memset(to->alive + n, 0, sizeof *to->alive * (size_t)(to->n_alive_max - n));
    }
    alloc_model_copy(to->alloc, from->alloc);
    to->held = from->held;
    to->program = from->program;
    to->mark = 0;
    to->n_marks = MAX(to->n_marks, from->n_marks); /* stamps are those of the other's marks */
    g_array_set_size(to->saved, 0);
}

void walk_mark(LedgerWalk *walk)
{
    walk->mark = ++walk->n_marks;
    walk->held_marked = walk->held;
    g_array_set_size(walk->saved, 0);
    alloc_model_mark(walk->alloc);
}

void walk_rewind(LedgerWalk *walk)
{
    for (guint i = 0; i < walk->saved->len; i++) {
        const SavedAlive *saved = &g_array_index(walk->saved, SavedAlive, i);
        walk->alive[saved->slot] = saved->alive;
    }
    walk->mark = 0;
    walk->held = walk->held_marked;
    g_array_set_size(walk->saved, 0);
    alloc_model_rewind(walk->alloc);
}

void ledger_join(Ledger *ledger, const Ledger *next)
{
    if (next->peak_bytes > ledger->peak_bytes) {
        ledger->peak_bytes = next->peak_bytes;
        memcpy(ledger->at_peak, next->at_peak, sizeof ledger->at_peak);
        ledger->peak_phase = next->peak_phase;
        ledger->peak_layer = next->peak_layer;
        ledger->peak_segment = next->peak_segment;
        ledger->peak_call = next->peak_call;
        ledger->peak_instr = next->peak_instr;
    }
    if (next->after_forward_bytes >= 0) {
        ledger->after_forward_bytes = next->after_forward_bytes;
        ledger->rounded_after_forward_bytes = next->rounded_after_forward_bytes;
    }
    ledger->rounded_peak_bytes = MAX(ledger->rounded_peak_bytes, next->rounded_peak_bytes);
    ledger->host_peak_bytes = MAX(ledger->host_peak_bytes, next->host_peak_bytes);
    ledger->reserved_bytes = MAX(ledger->reserved_bytes, next->reserved_bytes);
}

const int64_t *ledger_walk_held(const LedgerWalk *walk)
{
    return walk->held.by_tag;
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

void ledger_finish(Ledger *ledger, int64_t capacity_bytes)
{
    ledger->peak_op = next_op(ledger->peak_segment, ledger->peak_instr);
    ledger->after_forward_bytes = MAX(ledger->after_forward_bytes, 0);
    /* past the capacity the allocator gives cached memory back and tries again; what is alive it must hold */
    if (capacity_bytes > 0 && ledger->reserved_bytes > capacity_bytes) {
        ledger->reserved_bytes = MAX(capacity_bytes, ledger->peak_bytes);
    }
}

gboolean ledger_run(const Program *program, int64_t capacity_bytes, Ledger *ret_ledger, GError **error)
{
    g_autoptr(LedgerWalk) walk = ledger_walk_new(program);
    int64_t n_times = MIN(program->repeat.times, 2), n_done = 0; /* a second time shows that the first left nothing */
    for (guint c = 0; c < program->calls->len; c = program_next_call(program, c, n_times, &n_done)) {
        if (!walk_call(walk, c, error)) {
            return FALSE;
        }
    }
    if (!walk_check_end(walk, error)) {
        return FALSE;
    }
    *ret_ledger = walk->ledger;
    ledger_finish(ret_ledger, capacity_bytes);
    return TRUE;
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
