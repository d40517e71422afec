#include <string.h>

#include "workloads/run/step-fold.h"

/* A place in a run that nothing is known of: what leads on from it. */
typedef struct RunStop {
    guint32 key;
    SimTime now_ns;
    SimTime host_ns;
    SimTime least_lead_ns; /* since then; G_MAXINT64: the host's time is in the state, or was waited for since */
    LaneSums sums;
    guint n_marks;      /* noted before */
    gboolean is_spoilt; /* the host has come too near for others to do the same */
} RunStop;

/* The key of a place in a run: what the rest of the run depends on. */
static guint32 run_key(Fold *fold, const ProgramRun *run, guint place, gboolean *ret_is_new)
{
    GArray *words = fold->memo->words;
    const ProgramClock *clock = &fold->program->clock;
    int64_t head[] = {fold->law_key, (int64_t)run->id << 32 | place, clock->side, 0, fold->state, fold->slots->len};
    guint n_head = G_N_ELEMENTS(head);
    memcpy(&head[3], &clock->part, sizeof clock->part);
    g_array_set_size(words, n_head + (fold->slots->len + 1) / 2);
    g_array_index(words, int64_t, words->len - 1) = 0;
    memcpy(words->data, head, sizeof head);
    if (fold->slots->len > 0) {
        memcpy(&g_array_index(words, int64_t, n_head), fold->slots->data, fold->slots->len * sizeof(gint32));
    }
    guint32 key = intern_bytes(fold->memo->run_keys, words->data, words->len * sizeof(int64_t), ret_is_new);
    if (*ret_is_new) {
        RunMove unknown = {.state = -1};
        g_array_append_val(fold->memo->run_moves, unknown);
    }
    return key;
}

static void apply_run(Fold *fold, const RunMove *move)
{
    for (guint i = 0; i < move->n_marks; i++) {
        fold_note_mark(fold, &move->marks[i], fold->now_ns);
    }
    fold->now_ns += move->ns;
    fold->host_ns = move->is_near ? fold->now_ns + move->host_ns : fold->host_ns + move->host_ns;
    fold->state = move->state;
    fold->in_lanes = FALSE;
    g_array_set_size(fold->slots, 0);
    if (move->n_slots > 0) {
        g_array_append_vals(fold->slots, &g_array_index(fold->memo->run_slots, gint32, move->first_slot),
                            move->n_slots);
    }
    sums_add(&fold->sums, &move->sums, 1);
}

/* The run has ended: so much has happened since each of its stops. */
static void keep_stops(Fold *fold, const RunStop *stops, guint n)
{
    StepMemo *memo = fold->memo;
    guint first_slot = memo->run_slots->len;
    if (fold->state < 0 || n == 0) {
        return;
    }
    if (fold->slots->len > 0) {
        g_array_append_vals(memo->run_slots, fold->slots->data, fold->slots->len);
    }
    for (guint i = 0; i < n; i++) {
        RunMove *move = &g_array_index(memo->run_moves, RunMove, stops[i].key);
        guint n_marks = fold->run_marks->len - stops[i].n_marks;
        gboolean is_near = stops[i].least_lead_ns == G_MAXINT64;
        if (n_marks > MOVE_MARKS_MAX || stops[i].is_spoilt) {
            continue;
        }
        *move = (RunMove){.state = fold->state,
                          .ns = fold->now_ns - stops[i].now_ns,
                          .is_near = is_near,
                          .host_ns = is_near ? fold->host_ns - fold->now_ns : fold->host_ns - stops[i].host_ns,
                          .lead_ns = is_near ? 0 : FAR_NS + stops[i].now_ns - stops[i].host_ns - stops[i].least_lead_ns,
                          .sums = sums_minus(&fold->sums, &stops[i].sums),
                          .n_marks = n_marks,
                          .n_slots = fold->slots->len,
                          .first_slot = first_slot};
        for (guint k = 0; k < n_marks; k++) {
            const MoveMark *mark = &g_array_index(fold->run_marks, MoveMark, stops[i].n_marks + k);
            move->marks[k] =
                (MoveMark){mark->phase, mark->ns - stops[i].now_ns, sums_minus(&mark->sums, &stops[i].sums)};
        }
    }
}

/* A move has been made: how far ahead the host must have been at the stops for it to be far ahead now. */
static void follow_host(const Fold *fold, RunStop *stops, guint n, gboolean was_near, SimTime lead_ns)
{
    for (guint i = 0; i < n; i++) {
        RunStop *stop = &stops[i];
        if (stop->least_lead_ns == G_MAXINT64) {
            continue;
        }
        if (was_near) {
            stop->least_lead_ns = G_MAXINT64;
        } else {
            stop->least_lead_ns = MIN(stop->least_lead_ns, lead_ns);
            stop->is_spoilt = stop->is_spoilt || !fold_is_far(fold);
        }
    }
}

/*
 * The calls of a run, up to a place from which the rest is known: moments soon become alike that were different when
 * the run began, so places at its beginning are asked at each call, later ones now and then.
 */
gboolean fold_make_run(Fold *fold, const ProgramRun *run)
{
    enum { EACH_UNTIL = 8, THEN_EVERY = 8, STOPS_MAX = 64 };
    RunStop stops[STOPS_MAX];
    guint n_stops = 0;
    g_array_set_size(fold->run_marks, 0);
    for (guint place = 0; place < run->n; place++) {
        if (fold->state >= 0 && (place < EACH_UNTIL || place % THEN_EVERY == 0)) {
            gboolean is_new;
            guint32 key = run_key(fold, run, place, &is_new);
            const RunMove *known = &g_array_index(fold->memo->run_moves, RunMove, key);
            gboolean is_far = fold_is_far(fold);
            if (known->state >= 0 && (!is_far || fold_lead_ns(fold) >= known->lead_ns)) {
                SimTime lead_ns = fold_lead_ns(fold) - (known->lead_ns - FAR_NS);
                gboolean was_near = known->is_near;
                apply_run(fold, known);
                follow_host(fold, stops, n_stops, was_near, lead_ns);
                break;
            }
            if (n_stops < STOPS_MAX) {
                stops[n_stops++] = (RunStop){.key = key,
                                             .now_ns = fold->now_ns,
                                             .host_ns = fold->host_ns,
                                             .sums = fold->sums,
                                             .least_lead_ns = is_far ? fold_lead_ns(fold) : G_MAXINT64,
                                             .n_marks = fold->run_marks->len};
            }
        }
        const Call *call = &g_array_index(fold->program->calls, Call, run->first + place);
        if (!fold_make_move(fold, fold_view(fold, call->segment), call)) {
            return FALSE;
        }
        follow_host(fold, stops, n_stops, fold->was_near, fold_lead_ns(fold));
    }
    keep_stops(fold, stops, n_stops);
    return TRUE;
}
