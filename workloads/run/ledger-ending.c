#include "workloads/run/ledger-ending.h"

#include <string.h>

#include "sim/base/intern.h"

/*
 * Stops of one walk, and calls before the last: what does not meet in the first layers mostly never does, and to say
 * what has changed costs more the more there is.
 */
enum { STOPS_MAX = 8, LAST_STOP = 17 };

/* What an ending notes while each tail's size lies within bounds. */
typedef struct Zone {
    int64_t least[ALLOC_TAILS_MAX], most[ALLOC_TAILS_MAX];
    Ledger ledger; /* peak_call: from the first call of all runs; reserved_bytes: more than before the stop */
} Zone;

struct LedgerEndings {
    Intern *names;    /* of moments and what follows */
    GPtrArray *zones; /* GArray of Zone, by name */
    size_t n_zones;
    GArray *words; /* scratch */
    LedgerEndingCounts counts;
};

/* Bounds of the tails, as sizes that they had at the begin. 0 and G_MAXINT64: none. */
typedef struct Bounds {
    int64_t least[ALLOC_TAILS_MAX], most[ALLOC_TAILS_MAX];
} Bounds;

/* A place of a walk from which on there are zones. Of the tails there those are open that were at the begin. */
typedef struct Stop {
    GArray *zones; /* NULL: too much to say, like no other */
    int n_tails;
    AllocTail tails[ALLOC_TAILS_MAX];     /* the open ones, as they are here */
    int at_begin[ALLOC_TAILS_MAX];        /* which one each was */
    int64_t grown_bytes[ALLOC_TAILS_MAX]; /* how much larger it is than then */
    int64_t reserved_bytes;
    Ledger ledger; /* noted, and bounds found, between here and the next stop */
    Bounds bounds;
} Stop;

/* An ending that is walked. */
typedef struct EndingWalk {
    LedgerEndings *endings;
    LedgerWalk *walk;
    guint32 node;
    const LedgerPiece *runs;
    guint n_runs;
    Stop stops[STOPS_MAX];
    int n_stops;
    AllocTail watched[ALLOC_TAILS_MAX]; /* tails at the begin */
    int n_watched;
} EndingWalk;

static void drop_zones(void *zones)
{
    g_array_unref(zones);
}

LedgerEndings *ledger_endings_new(void)
{
    LedgerEndings *endings = g_new0(LedgerEndings, 1);
    endings->names = intern_new();
    endings->zones = g_ptr_array_new_with_free_func(drop_zones);
    endings->words = g_array_new(FALSE, FALSE, sizeof(int64_t));
    return endings;
}

void ledger_endings_clear(LedgerEndings *endings)
{
    intern_clear(endings->names);
    g_ptr_array_set_size(endings->zones, 0);
    endings->n_zones = 0;
}

void ledger_endings_free(LedgerEndings *endings)
{
    if (endings != NULL) {
        intern_free(endings->names);
        g_ptr_array_unref(endings->zones);
        g_array_unref(endings->words);
        g_free(endings);
    }
}

size_t ledger_endings_size_bytes(const LedgerEndings *endings)
{
    return intern_size_bytes(endings->names) + endings->zones->len * sizeof(GArray) + endings->n_zones * sizeof(Zone);
}

const LedgerEndingCounts *ledger_endings_counts(const LedgerEndings *endings)
{
    return &endings->counts;
}

static int64_t reserved_of(const LedgerWalk *walk)
{
    return alloc_model_stats(walk->alloc)->reserved_bytes_max;
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

/* Sorts the tails at a stop: the open ones are kept, the size of any other is one more word. */
static void find_open(EndingWalk *ending, Stop *stop)
{
    int n_open = 0;
    for (int t = 0; t < stop->n_tails; t++) {
        AllocTail tail = stop->tails[t];
        int i = 0;
        while (i < ending->n_watched && ending->watched[i].block != tail.block) {
            i++;
        }
        int64_t word = i < ending->n_watched ? -1 - i : tail.bytes;
        g_array_append_val(ending->endings->words, word);
        if (i < ending->n_watched) {
            stop->at_begin[n_open] = i;
            stop->grown_bytes[n_open] = tail.bytes - ending->watched[i].bytes;
            stop->tails[n_open++] = tail;
        }
    }
    stop->n_tails = n_open;
}

/* What is behind the first n_done calls of the runs, with its zones. */
static void find_ending(EndingWalk *ending, guint n_done, Stop *stop)
{
    LedgerEndings *endings = ending->endings;
    int64_t head[] = {ending->node, n_done, ending->n_runs};
    gboolean is_new;
    g_array_set_size(endings->words, 0);
    g_array_append_vals(endings->words, head, G_N_ELEMENTS(head));
    for (guint i = 0; i < ending->n_runs; i++) {
        g_array_append_val(endings->words, ending->runs[i].run);
    }
    int64_t n_tails = stop->n_tails = walk_append_change(ending->walk, endings->words, stop->tails);
    stop->zones = NULL;
    if (n_tails < 0) {
        stop->n_tails = 0;
        return;
    }
    if (n_done == 0) {
        memcpy(ending->watched, stop->tails, sizeof ending->watched[0] * (size_t)n_tails);
        ending->n_watched = (int)n_tails;
    }
    find_open(ending, stop);
    g_array_append_val(endings->words, n_tails);
    guint32 id = intern_bytes(endings->names, endings->words->data, endings->words->len * sizeof(int64_t), &is_new);
    if (is_new) {
        g_ptr_array_add(endings->zones, g_array_new(FALSE, FALSE, sizeof(Zone)));
    }
    stop->zones = g_ptr_array_index(endings->zones, id);
}

/* What the walk has noted and found since the last stop is that stop's; from here on it does so anew. */
static void close_stop(EndingWalk *ending)
{
    Stop *stop = &ending->stops[ending->n_stops - 1];
    stop->ledger = ending->walk->ledger;
    for (int i = 0; i < ALLOC_TAILS_MAX; i++) {
        stop->bounds.least[i] = i < ending->n_watched ? ending->watched[i].least : 0;
        stop->bounds.most[i] = i < ending->n_watched ? ending->watched[i].most : G_MAXINT64;
    }
}

static void open_stop(EndingWalk *ending)
{
    ending->n_stops++;
    walk_start_ledger(ending->walk);
    alloc_model_watch(ending->walk->alloc, ending->watched, ending->n_watched);
}

/* Stops before a call of the runs. TRUE: what is behind is known, *ret_zone (of the last stop, which is not opened). */
static gboolean stop_at(EndingWalk *ending, guint n_done, const Zone **ret_zone)
{
    Stop *stop = &ending->stops[ending->n_stops];
    if (ending->n_stops > 0) {
        close_stop(ending);
    }
    find_ending(ending, n_done, stop);
    stop->reserved_bytes = reserved_of(ending->walk);
    *ret_zone = stop->zones != NULL ? find_zone(stop->zones, stop->tails, stop->n_tails) : NULL;
    return *ret_zone != NULL;
}

static void meet_bounds(Bounds *bounds, const Bounds *other)
{
    for (int i = 0; i < ALLOC_TAILS_MAX; i++) {
        bounds->least[i] = MAX(bounds->least[i], other->least[i]);
        bounds->most[i] = MIN(bounds->most[i], other->most[i]);
    }
}

/* What a zone at a stop (NULL: nothing) says about the tails. */
static void bounds_of_zone(const Stop *stop, const Zone *zone, Bounds *ret_bounds)
{
    for (int i = 0; i < ALLOC_TAILS_MAX; i++) {
        ret_bounds->least[i] = 0;
        ret_bounds->most[i] = G_MAXINT64;
    }
    for (int t = 0; zone != NULL && t < stop->n_tails; t++) {
        int i = stop->at_begin[t];
        ret_bounds->least[i] = zone->least[t] > 0 ? MAX(zone->least[t] - stop->grown_bytes[t], 0) : 0;
        ret_bounds->most[i] = zone->most[t] < G_MAXINT64 ? zone->most[t] - stop->grown_bytes[t] : G_MAXINT64;
    }
}

/* A zone for a stop, from what was noted and found from there to the end. */
static void add_zone(EndingWalk *ending, const Stop *stop, const Ledger *ledger, const Bounds *bounds)
{
    Zone zone = {.ledger = *ledger};
    if (stop->zones == NULL) {
        return;
    }
    zone.ledger.peak_call -= (gint32)ending->runs[0].first;
    zone.ledger.reserved_bytes -= stop->reserved_bytes;
    for (int t = 0; t < stop->n_tails; t++) {
        int64_t least = bounds->least[stop->at_begin[t]], most = bounds->most[stop->at_begin[t]];
        zone.least[t] = least > 0 ? MAX(least + stop->grown_bytes[t], 0) : 0;
        zone.most[t] = most < G_MAXINT64 ? most + stop->grown_bytes[t] : G_MAXINT64;
    }
    g_array_append_val(stop->zones, zone);
    ending->endings->n_zones++;
}

/*
 * Joins what was noted, from the last stop to the first; every stop gets its zone. met: what is known behind the stop
 * that was not opened; NULL: the walk went to the end.
 */
static void finish(EndingWalk *ending, const Zone *met, Ledger *ledger)
{
    const Stop *last = &ending->stops[ending->n_stops];
    Ledger noted = {.peak_bytes = -1, .rounded_peak_bytes = -1, .host_peak_bytes = -1, .after_forward_bytes = -1};
    Bounds bounds;
    bounds_of_zone(last, met, &bounds);
    if (met != NULL) {
        noted = met->ledger;
        noted.peak_call += (gint32)ending->runs[0].first;
        noted.reserved_bytes += last->reserved_bytes;
    }
    for (int s = ending->n_stops; s-- > 0;) {
        Ledger behind = noted;
        noted = ending->stops[s].ledger;
        ledger_join(&noted, &behind);
        meet_bounds(&bounds, &ending->stops[s].bounds);
        add_zone(ending, &ending->stops[s], &noted, &bounds);
    }
    ledger_join(ledger, &noted);
}

/* Walks until what is behind is known, or to the end. */
static gboolean walk_runs(EndingWalk *ending, const Zone **ret_met, GError **error)
{
    guint n_done = 0, next_stop = 0;
    *ret_met = NULL;
    for (guint r = 0; r < ending->n_runs; r++) {
        for (guint c = 0; c < ending->runs[r].n; c++, n_done++) {
            if (n_done == next_stop && n_done <= LAST_STOP) {
                if (stop_at(ending, n_done, ret_met)) {
                    return TRUE;
                }
                open_stop(ending);
                next_stop = n_done < 2 ? n_done + 1 : 2 * n_done - 1;
            }
            if (!walk_calls(ending->walk, ending->runs[r].first + c, 1, error)) {
                return FALSE;
            }
            ending->endings->counts.n_calls_walked++;
        }
    }
    close_stop(ending);
    return walk_check_end(ending->walk, error);
}

gboolean ledger_endings_run(LedgerEndings *endings, LedgerWalk *walk, guint32 node, const LedgerPiece *runs,
                            guint n_runs, Ledger *ledger, GError **error)
{
    EndingWalk ending = {.endings = endings, .walk = walk, .node = node, .runs = runs, .n_runs = n_runs};
    const Zone *met;
    gboolean ok = walk_runs(&ending, &met, error);
    alloc_model_watch(walk->alloc, NULL, 0);
    if (!ok) {
        return FALSE;
    }
    endings->counts.n_known += met != NULL && ending.n_stops == 0;
    endings->counts.n_met += met != NULL && ending.n_stops > 0;
    finish(&ending, met, ledger);
    return TRUE;
}
