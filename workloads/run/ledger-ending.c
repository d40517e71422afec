#include "workloads/run/ledger-ending.h"

#include <string.h>

#include "sim/base/intern.h"
#include "workloads/run/ledger-log.h"

/*
 * Stops of one walk, and calls before the last: what does not meet in the first layers mostly never does, and to say
 * what has changed costs more the more there is.
 */
enum { LAST_STOP = 17 };

/* Logs that are kept, those that were asked for last, and the memory that one may take. */
enum { LOGS_MAX = 4, LOG_BYTES_MAX = 4 << 20 };

/* What an ending notes while each tail's size lies within bounds. */
typedef struct Zone {
    int64_t least[ALLOC_TAILS_MAX], most[ALLOC_TAILS_MAX];
    Ledger ledger; /* peak_call: from the first call of all runs; reserved_bytes: more than before the stop */
} Zone;

struct LedgerEndings {
    Intern *begins;   /* names of how endings begin, but for one shelf */
    Intern *names;    /* of moments on that shelf and what follows */
    GPtrArray *zones; /* GArray of Zone, by name */
    size_t n_zones;
    LedgerLog *logs[LOGS_MAX]; /* or NULL */
    LedgerLog *spare;          /* not whole yet, or anymore */
    uint64_t n_uses;
    GArray *words, *blocks; /* scratch */
    LedgerEndingCounts counts;
};

/* A place of a walk from which on there are zones. */
typedef struct Stop {
    GArray *zones; /* NULL: too much to say, like no other */
    int n_tails;
    AllocTail tails[ALLOC_TAILS_MAX];   /* as they are here */
    AllocTail watched[ALLOC_TAILS_MAX]; /* these: what they may be until the next stop, and where they are there */
    int64_t reserved_bytes;
    Ledger ledger; /* noted between here and the next stop */
} Stop;

/* An ending that is walked. */
typedef struct EndingWalk {
    LedgerEndings *endings;
    LedgerWalk *walk;
    gint64 begin; /* how it begins, but for the shelf; -1: like no other */
    const LedgerPiece *runs;
    guint n_runs;
    LedgerReplay replay;
    LedgerLog *log; /* that is written, or NULL */
    Stop stops[LOG_PARTS_MAX];
    int n_stops;
} EndingWalk;

static void drop_zones(void *zones)
{
    g_array_unref(zones);
}

LedgerEndings *ledger_endings_new(void)
{
    LedgerEndings *endings = g_new0(LedgerEndings, 1);
    endings->begins = intern_new();
    endings->names = intern_new();
    endings->zones = g_ptr_array_new_with_free_func(drop_zones);
    endings->words = g_array_new(FALSE, FALSE, sizeof(int64_t));
    endings->blocks = g_array_new(FALSE, TRUE, sizeof(AllocBlock));
    endings->spare = ledger_log_new();
    return endings;
}

void ledger_endings_clear(LedgerEndings *endings)
{
    intern_clear(endings->begins);
    intern_clear(endings->names);
    g_ptr_array_set_size(endings->zones, 0);
    endings->n_zones = 0;
    for (int i = 0; i < LOGS_MAX; i++) {
        g_clear_pointer(&endings->logs[i], ledger_log_free);
    }
}

void ledger_endings_free(LedgerEndings *endings)
{
    if (endings != NULL) {
        ledger_endings_clear(endings);
        intern_free(endings->begins);
        intern_free(endings->names);
        g_ptr_array_unref(endings->zones);
        ledger_log_free(endings->spare);
        g_array_unref(endings->words);
        g_array_unref(endings->blocks);
        g_free(endings);
    }
}

size_t ledger_endings_size_bytes(const LedgerEndings *endings)
{
    return intern_size_bytes(endings->begins) + intern_size_bytes(endings->names) +
           endings->zones->len * sizeof(GArray) + endings->n_zones * sizeof(Zone);
}

const LedgerEndingCounts *ledger_endings_counts(const LedgerEndings *endings)
{
    return &endings->counts;
}

static int64_t reserved_of(const EndingWalk *ending)
{
    return alloc_model_stats(ending->walk->alloc)->reserved_bytes_max + ending->replay.others_reserved_bytes;
}

/* The zone in which sizes of tails lie, or NULL. */
static const Zone *find_zone(const GArray *zones, const AllocTail *tails, int n_tails)
{
    for (guint z = zones->len; z-- > 0;) {
        const Zone *zone = &g_array_index(zones, Zone, z);
        int i = 0;
        while (i < n_tails && tails[i].bytes >= zone->least[i] && tails[i].bytes <= zone->most[i]) {
            i++;
        }
        if (i == n_tails) {
            return zone;
        }
    }
    return NULL;
}

/* Names how an ending begins, but for the shelf: there it may differ from others of that name. */
static void find_begin(EndingWalk *ending, guint32 node)
{
    LedgerEndings *endings = ending->endings;
    int64_t head[] = {node, ending->n_runs};
    gboolean is_new;
    g_array_set_size(endings->words, 0);
    g_array_append_vals(endings->words, head, G_N_ELEMENTS(head));
    for (guint i = 0; i < ending->n_runs; i++) {
        g_array_append_val(endings->words, ending->runs[i].run);
    }
    gboolean can_say = walk_append_change(ending->walk, ~(1u << ledger_log_shelf(ending->walk)), endings->words);
    ending->begin = -1;
    if (can_say) {
        ending->begin =
            intern_bytes(endings->begins, endings->words->data, endings->words->len * sizeof(int64_t), &is_new);
    }
    ledger_log_begin(ending->walk, endings->blocks);
}

/* What is behind the first n_done calls of the runs, with its zones. */
static void find_ending(EndingWalk *ending, guint n_done, Stop *stop)
{
    LedgerEndings *endings = ending->endings;
    LedgerWalk *walk = ending->walk;
    int64_t head[] = {ending->begin, n_done};
    gboolean is_new;
    g_array_set_size(endings->words, 0);
    g_array_append_vals(endings->words, head, G_N_ELEMENTS(head));
    int64_t n_tails = stop->n_tails =
        alloc_model_append_change(walk->alloc, 1u << ledger_log_shelf(walk), endings->words, stop->tails);
    stop->zones = NULL;
    if (n_tails < 0 || ending->begin < 0) {
        stop->n_tails = 0;
        return;
    }
    ledger_log_append_places(walk, endings->blocks, endings->words);
    g_array_append_val(endings->words, n_tails);
    guint32 id = intern_bytes(endings->names, endings->words->data, endings->words->len * sizeof(int64_t), &is_new);
    if (is_new) {
        g_ptr_array_add(endings->zones, g_array_new(FALSE, FALSE, sizeof(Zone)));
    }
    stop->zones = g_ptr_array_index(endings->zones, id);
}

/* What has been noted and found since the last stop is that stop's; from here on it is anew. FALSE: see
 * ledger_replay_close(). */
static gboolean close_stop(EndingWalk *ending)
{
    Stop *stop = &ending->stops[ending->n_stops - 1];
    gboolean is_known = TRUE;
    if (ending->replay.log != NULL) {
        is_known = ledger_replay_close(&ending->replay, ending->runs[0].first, &stop->ledger);
    } else {
        stop->ledger = ending->walk->ledger;
        ledger_log_close(ending->log, ending->walk, ending->runs[0].first);
    }
    return is_known;
}

static void open_stop(EndingWalk *ending)
{
    Stop *stop = &ending->stops[ending->n_stops++];
    walk_start_ledger(ending->walk);
    memcpy(stop->watched, stop->tails, sizeof stop->tails);
    alloc_model_watch(ending->walk->alloc, stop->watched, stop->n_tails);
}

/* Stops before a call of the runs. *ret_met: the zone in which what is behind is known; the stop is not opened then.
 * FALSE: see close_stop(). */
static gboolean stop_at(EndingWalk *ending, guint n_done, const Zone **ret_met)
{
    Stop *stop = &ending->stops[ending->n_stops];
    if (ending->n_stops > 0 && !close_stop(ending)) {
        return FALSE;
    }
    find_ending(ending, n_done, stop);
    stop->reserved_bytes = reserved_of(ending);
    *ret_met = stop->zones != NULL ? find_zone(stop->zones, stop->tails, stop->n_tails) : NULL;
    return TRUE;
}

/* The bounds of a tail at the stop before, as sizes that it has there, where behind the next stop it is the t-th of
 * `next` and must lie within a zone's. */
static void follow_tail(AllocTail *tail, const Stop *next, int t, const Zone *zone)
{
    int64_t grown_bytes = next->tails[t].bytes - tail->bytes;
    if (zone->least[t] > 0) {
        tail->least = MAX(tail->least, zone->least[t] - grown_bytes);
    }
    if (zone->most[t] < G_MAXINT64) {
        tail->most = MIN(tail->most, zone->most[t] - grown_bytes);
    }
}

/* A zone at a stop; behind: that of the next one, or NULL at the end. */
static void make_zone(const Stop *stop, const Stop *next, const Zone *behind, Zone *ret_zone)
{
    for (int i = 0; i < stop->n_tails; i++) {
        AllocTail tail = stop->watched[i];
        for (int t = 0; behind != NULL && t < next->n_tails; t++) {
            if (next->tails[t].block == tail.block) {
                follow_tail(&tail, next, t, behind);
            }
        }
        ret_zone->least[i] = tail.least;
        ret_zone->most[i] = tail.most;
    }
    ret_zone->ledger = stop->ledger;
    if (behind != NULL) {
        Ledger ledger = behind->ledger;
        ledger.reserved_bytes += next->reserved_bytes;
        ledger_join(&ret_zone->ledger, &ledger);
    }
    ret_zone->ledger.reserved_bytes -= stop->reserved_bytes;
}

/*
 * Joins what was noted, from the last stop to the first; every stop gets its zone. met: what is known behind the stop
 * that was not opened; NULL: the ending went to the end.
 */
static void finish(EndingWalk *ending, const Zone *met, Ledger *ledger)
{
    Zone zone, behind;
    const Zone *last = met;
    for (int s = ending->n_stops; s-- > 0;) {
        Stop *stop = &ending->stops[s];
        stop->ledger.peak_call -= (gint32)ending->runs[0].first;
        make_zone(stop, stop + 1, last, &zone);
        behind = zone;
        last = &behind;
        if (stop->zones != NULL) {
            g_array_append_val(stop->zones, zone);
            ending->endings->n_zones++;
        }
    }
    Ledger noted = last->ledger;
    noted.peak_call += (gint32)ending->runs[0].first;
    noted.reserved_bytes += ending->stops[0].reserved_bytes;
    ledger_join(ledger, &noted);
}

/* ---- logs ---- */

static LedgerLog **find_log(LedgerEndings *endings, gint64 begin)
{
    for (int i = 0; i < LOGS_MAX; i++) {
        if (endings->logs[i] != NULL && endings->logs[i]->begin == begin) {
            endings->logs[i]->last_use = ++endings->n_uses;
            return &endings->logs[i];
        }
    }
    return NULL;
}

static LedgerLog **oldest_log(LedgerEndings *endings)
{
    LedgerLog **oldest = &endings->logs[0];
    for (int i = 1; i < LOGS_MAX && *oldest != NULL; i++) {
        LedgerLog **other = &endings->logs[i];
        oldest = *other == NULL || (*other)->last_use < (*oldest)->last_use ? other : oldest;
    }
    return oldest;
}

/* The log that has been written is whole: it takes the place of another of that begin, or of the oldest. */
static void keep_log(LedgerEndings *endings, gint64 begin)
{
    LedgerLog **place = find_log(endings, begin);
    if (begin < 0 || ledger_log_size_bytes(endings->spare) > LOG_BYTES_MAX) {
        return;
    }
    place = place != NULL ? place : oldest_log(endings);
    LedgerLog *kept = endings->spare;
    endings->spare = *place != NULL ? *place : ledger_log_new();
    *place = kept;
    kept->begin = begin;
    kept->last_use = ++endings->n_uses;
}

/* Whether the ending asks the shelf alone: what it asks is known. Else a log of that is written. */
static void start_log(EndingWalk *ending, gboolean may_replay)
{
    LedgerEndings *endings = ending->endings;
    LedgerLog **log = may_replay ? find_log(endings, ending->begin) : NULL;
    if (log != NULL) {
        ledger_replay_start(&ending->replay, *log, ending->walk, endings->blocks);
    } else {
        ending->log = endings->spare;
        ledger_log_start(ending->log, ending->walk, endings->blocks);
    }
}

static gboolean walk_one(EndingWalk *ending, guint n_done, guint call, GError **error)
{
    if (ending->replay.log != NULL) {
        ledger_replay_call(&ending->replay, n_done);
        return TRUE;
    }
    ledger_log_call(ending->log);
    ending->endings->counts.n_calls_walked++;
    return walk_calls(ending->walk, call, 1, error);
}

/* ---- endings ---- */

/* Goes on until what is behind is known, or to the end. *ret_done FALSE: see close_stop(). */
static gboolean walk_runs(EndingWalk *ending, gboolean may_replay, const Zone **ret_met, gboolean *ret_done,
                          GError **error)
{
    guint n_done = 0, next_stop = 0;
    *ret_met = NULL;
    *ret_done = TRUE;
    for (guint r = 0; r < ending->n_runs; r++) {
        for (guint c = 0; c < ending->runs[r].n; c++, n_done++) {
            if (n_done == next_stop && n_done <= LAST_STOP) {
                *ret_done = stop_at(ending, n_done, ret_met);
                if (*ret_met != NULL || !*ret_done) {
                    return TRUE;
                }
                if (n_done == 0) {
                    start_log(ending, may_replay);
                }
                open_stop(ending);
                next_stop = n_done < 2 ? n_done + 1 : 2 * n_done - 1;
            }
            if (!walk_one(ending, n_done, ending->runs[r].first + c, error)) {
                return FALSE;
            }
        }
    }
    *ret_done = close_stop(ending);
    if (ending->replay.log != NULL) {
        return TRUE;
    }
    ledger_log_stop(ending->log, ending->walk);
    keep_log(ending->endings, ending->begin);
    return walk_check_end(ending->walk, error);
}

gboolean ledger_endings_run(LedgerEndings *endings, LedgerWalk *walk, guint32 node, const LedgerPiece *runs,
                            guint n_runs, gboolean may_replay, Ledger *ledger, gboolean *ret_done, GError **error)
{
    EndingWalk ending = {.endings = endings, .walk = walk, .runs = runs, .n_runs = n_runs};
    const Zone *met;
    find_begin(&ending, node);
    gboolean ok = walk_runs(&ending, may_replay, &met, ret_done, error);
    alloc_model_watch(walk->alloc, NULL, 0);
    walk->log = NULL;
    endings->counts.n_replayed += ending.replay.log != NULL;
    endings->counts.n_odd += !*ret_done;
    if (!ok || !*ret_done) {
        return ok;
    }
    endings->counts.n_known += met != NULL && ending.n_stops == 0;
    endings->counts.n_met += met != NULL && ending.n_stops > 0;
    finish(&ending, met, ledger);
    return TRUE;
}
