#include "workloads/run/ledger-log.h"

#include <string.h>

/* CALL: a call begins. MARK: the forward pass ends. */
enum { LOG_TAKE, LOG_GIVE, LOG_CALL, LOG_MARK };

/* What is asked of the shelf. */
typedef struct LogStep {
    int64_t bytes;      /* TAKE */
    int64_t had_bytes;  /* TAKE, GIVE: size of the block that it was */
    int64_t most_bytes; /* alive from here to the next step, where a peak was looked for; -1: nowhere */
    gint32 block;       /* TAKE, GIVE: its number; GIVE: -1 - slot of a buffer that has held it since before the mark */
    guint8 kind, tag;
} LogStep;

LedgerLog *ledger_log_new(void)
{
    LedgerLog *log = g_new0(LedgerLog, 1);
    log->steps = g_array_new(FALSE, FALSE, sizeof(LogStep));
    log->calls = g_array_new(FALSE, FALSE, sizeof(guint));
    log->owners = g_array_new(FALSE, TRUE, sizeof(gint32));
    return log;
}

void ledger_log_free(LedgerLog *log)
{
    if (log != NULL) {
        g_array_unref(log->steps);
        g_array_unref(log->calls);
        g_array_unref(log->owners);
        g_free(log);
    }
}

size_t ledger_log_size_bytes(const LedgerLog *log)
{
    return sizeof *log + log->steps->len * sizeof(LogStep) + log->calls->len * sizeof(guint);
}

int ledger_log_shelf(const LedgerWalk *walk)
{
    return alloc_model_shelf(walk->alloc, STREAM_COMPUTE, G_MAXINT32);
}

static gboolean is_on(const LedgerWalk *walk, const Alive *alive, int shelf)
{
    return alive->alive && alive->tier == TIER_HBM && alloc_model_block_shelf(walk->alloc, alive->block) == shelf;
}

void ledger_log_begin(const LedgerWalk *walk, GArray *blocks)
{
    int shelf = ledger_log_shelf(walk);
    g_array_set_size(blocks, 0);
    for (guint i = 0; i < walk->saved->len; i++) {
        const Alive *alive = &walk->alive[g_array_index(walk->saved, SavedAlive, i).slot];
        if (is_on(walk, alive, shelf)) {
            g_array_append_val(blocks, alive->block);
        }
    }
}

void ledger_log_append_places(const LedgerWalk *walk, const GArray *blocks, GArray *words)
{
    for (guint i = 0; i < blocks->len; i++) {
        AllocBlock block = g_array_index(blocks, AllocBlock, i);
        if (block != ALLOC_NOTHING) {
            int64_t number = i;
            g_array_append_val(words, number);
            alloc_model_append_place(walk->alloc, block, words);
        }
    }
}

/* ---- writing ---- */

/* What a slot holds: the number of a block and one more, or -1 - the slot that held it at the mark, or 0: what it held
 * there itself. */
static gint32 *owner_of(LedgerLog *log, gint32 slot)
{
    if ((guint)slot >= log->owners->len) {
        g_array_set_size(log->owners, (guint)slot + 1);
    }
    return &g_array_index(log->owners, gint32, slot);
}

static void add_step(LedgerLog *log, LogStep step)
{
    step.most_bytes = -1;
    g_array_append_val(log->steps, step);
}

void ledger_log_start(LedgerLog *log, LedgerWalk *walk, GArray *blocks)
{
    gint32 n = 0;
    g_array_set_size(log->steps, 0);
    g_array_set_size(log->calls, 0);
    g_array_set_size(log->owners, 0);
    log->shelf = ledger_log_shelf(walk);
    log->n_parts = 0;
    log->part_begin = 0;
    log->held = walk->held;
    log->blocks = blocks;
    log->reserved_bytes = alloc_model_stats(walk->alloc)->reserved_bytes_max;
    log->others_reserved_bytes = 0;
    for (guint i = 0; i < walk->saved->len; i++) {
        gint32 slot = g_array_index(walk->saved, SavedAlive, i).slot;
        if (is_on(walk, &walk->alive[slot], log->shelf)) {
            *owner_of(log, slot) = ++n;
        }
    }
    walk->log = log;
}

void ledger_log_call(LedgerLog *log)
{
    g_array_append_val(log->calls, log->steps->len);
    add_step(log, (LogStep){.kind = LOG_CALL});
}

void ledger_log_mark(LedgerLog *log)
{
    add_step(log, (LogStep){.kind = LOG_MARK});
}

void ledger_log_take(LedgerLog *log, const LedgerWalk *walk, gint32 slot, int64_t bytes)
{
    const Alive *alive = &walk->alive[slot];
    int64_t reserved_bytes = alloc_model_stats(walk->alloc)->reserved_bytes_max;
    if (alloc_model_block_shelf(walk->alloc, alive->block) == log->shelf) {
        add_step(log, (LogStep){.kind = LOG_TAKE,
                                .bytes = bytes,
                                .had_bytes = alloc_model_block_bytes(walk->alloc, alive->block),
                                .block = (gint32)log->blocks->len,
                                .tag = alive->tag});
        g_array_append_val(log->blocks, alive->block);
        *owner_of(log, slot) = (gint32)log->blocks->len;
    } else {
        log->others_reserved_bytes += reserved_bytes - log->reserved_bytes;
    }
    log->reserved_bytes = reserved_bytes;
    LogStep *last = &g_array_index(log->steps, LogStep, log->steps->len - 1);
    last->most_bytes = MAX(last->most_bytes, walk->held.total);
}

void ledger_log_give(LedgerLog *log, const LedgerWalk *walk, gint32 slot)
{
    const Alive *alive = &walk->alive[slot];
    gint32 owner = *owner_of(log, slot);
    if (alloc_model_block_shelf(walk->alloc, alive->block) != log->shelf) {
        return;
    }
    add_step(log, (LogStep){.kind = LOG_GIVE,
                            .had_bytes = alloc_model_block_bytes(walk->alloc, alive->block),
                            .block = owner > 0   ? owner - 1
                                     : owner < 0 ? owner
                                                 : -1 - slot,
                            .tag = alive->tag});
    if (owner > 0) {
        g_array_index(log->blocks, AllocBlock, owner - 1) = ALLOC_NOTHING;
    }
}

void ledger_log_move(LedgerLog *log, gint32 from, gint32 to)
{
    gint32 owner = *owner_of(log, from);
    *owner_of(log, to) = owner != 0 ? owner : -1 - from;
}

void ledger_log_close(LedgerLog *log, const LedgerWalk *walk, guint first_call)
{
    LogPart *part = &log->parts[log->n_parts];
    guint step = log->part_begin;
    *part = (LogPart){.ledger = walk->ledger, .others_reserved_bytes = log->others_reserved_bytes};
    part->ledger.peak_call -= (gint32)first_call;
    part->ledger.reserved_bytes = 0;
    while (step < log->steps->len && g_array_index(log->steps, LogStep, step).most_bytes != walk->ledger.peak_bytes) {
        step++;
    }
    part->peak_step = step;
    log->others_reserved_bytes = 0;
    log->part_begin = log->steps->len;
    log->n_parts++;
}

void ledger_log_stop(LedgerLog *log, LedgerWalk *walk)
{
    log->n_blocks = (gint32)log->blocks->len;
    log->blocks = NULL;
    g_array_set_size(log->owners, 0);
    g_array_append_val(log->calls, log->steps->len);
    walk->log = NULL;
}

/* ---- asking the shelf alone ---- */

static void start_part(LedgerReplay *replay)
{
    replay->peak_bytes = -1;
    replay->peak_step = G_MAXUINT;
    replay->after_forward_bytes = -1;
}

void ledger_replay_start(LedgerReplay *replay, const LedgerLog *log, LedgerWalk *walk, GArray *blocks)
{
    *replay = (LedgerReplay){.log = log, .walk = walk, .blocks = blocks};
    g_assert(blocks->len <= (guint)log->n_blocks);
    replay->more.total = walk->held.total - log->held.total;
    for (int i = 0; i < N_MEM_TAGS; i++) {
        replay->more.by_tag[i] = walk->held.by_tag[i] - log->held.by_tag[i];
    }
    start_part(replay);
}

static void more_alive(LedgerReplay *replay, int tag, int64_t bytes)
{
    replay->more.total += bytes;
    replay->more.by_tag[tag] += bytes;
}

static void replay_take(LedgerReplay *replay, const LogStep *step)
{
    AllocModel *alloc = replay->walk->alloc;
    AllocBlock block = alloc_model_take(alloc, STREAM_COMPUTE, step->bytes);
    g_array_set_size(replay->blocks, (guint)step->block + 1);
    g_array_index(replay->blocks, AllocBlock, step->block) = block;
    more_alive(replay, step->tag, alloc_model_block_bytes(alloc, block) - step->had_bytes);
}

static void replay_give(LedgerReplay *replay, const LogStep *step)
{
    AllocModel *alloc = replay->walk->alloc;
    AllocBlock block;
    if (step->block >= 0) {
        block = g_array_index(replay->blocks, AllocBlock, step->block);
        g_array_index(replay->blocks, AllocBlock, step->block) = ALLOC_NOTHING;
    } else {
        block = replay->walk->alive[-1 - step->block].block;
    }
    more_alive(replay, step->tag, step->had_bytes - alloc_model_block_bytes(alloc, block));
    alloc_model_give(alloc, block);
}

void ledger_replay_call(LedgerReplay *replay, guint call)
{
    const LedgerLog *log = replay->log;
    const LogPart *part = &log->parts[replay->n_parts];
    guint end = g_array_index(log->calls, guint, call + 1);
    for (guint i = g_array_index(log->calls, guint, call); i < end; i++) {
        const LogStep *step = &g_array_index(log->steps, LogStep, i);
        if (step->kind == LOG_TAKE) {
            replay_take(replay, step);
        } else if (step->kind == LOG_GIVE) {
            replay_give(replay, step);
        } else if (step->kind == LOG_MARK) {
            replay->after_forward_bytes = part->ledger.after_forward_bytes + replay->more.total;
        }
        if (step->most_bytes >= 0 && step->most_bytes + replay->more.total > replay->peak_bytes) {
            replay->peak_bytes = step->most_bytes + replay->more.total;
            replay->peak_step = i;
        }
        if (i == part->peak_step) {
            memcpy(replay->more_by_tag, replay->more.by_tag, sizeof replay->more_by_tag);
        }
    }
}

gboolean ledger_replay_close(LedgerReplay *replay, guint first_call, Ledger *ret_ledger)
{
    const LogPart *part = &replay->log->parts[replay->n_parts++];
    gboolean is_same = part->ledger.peak_bytes < 0 || replay->peak_step == part->peak_step;
    *ret_ledger = part->ledger;
    ret_ledger->peak_call += (gint32)first_call;
    if (part->ledger.peak_bytes >= 0) {
        ret_ledger->peak_bytes = replay->peak_bytes;
    }
    for (int i = 0; part->ledger.peak_bytes >= 0 && i < N_MEM_TAGS; i++) {
        ret_ledger->at_peak[i] += replay->more_by_tag[i];
    }
    if (part->ledger.after_forward_bytes >= 0) {
        ret_ledger->after_forward_bytes = replay->after_forward_bytes;
    }
    replay->others_reserved_bytes += part->others_reserved_bytes;
    ret_ledger->reserved_bytes =
        alloc_model_stats(replay->walk->alloc)->reserved_bytes_max + replay->others_reserved_bytes;
    start_part(replay);
    return is_same;
}
