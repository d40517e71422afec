#include <stddef.h>
#include <string.h>

#include "workloads/run/step-memo.h"

enum { N_ROUNDS = 2, UNSETTLED_MAX = 8 };

/* Where the repeated block began, as often as it has begun. */
typedef struct Turn {
    gint64 state;
    GArray *slots; /* pending tokens, as Fold.slots */
    SimTime now_ns, mark_ns;
    LaneSums sums;
    SimTime phase_ns[N_PHASES];
} Turn;

/* A token that is pending after a move, where it came from, and how far off it is. */
typedef struct Pending {
    gint32 token;
    gint16 origin;
    LanePoint left;
} Pending;

/*
 * A run of a program. The moment is known in one of two forms or both: as a state, with the program's token for each of its
 * pending ones (slots), or in the lanes, with the point that each token stands for.
 */
typedef struct Fold {
    StepMemo *memo;
    Lanes *lanes;
    const Program *program;
    StepTimes *times;
    guint32 law;
    TimeView *views; /* by segment */
    gint64 state;    /* -1: only in the lanes */
    gboolean in_lanes;
    GArray *slots;      /* gint32: program tokens that are pending, when the moment is a state */
    Pending *pending;   /* scratch: one per program token */
    LanePoint *points;  /* by program token, when in the lanes */
    SimTime now_ns, host_ns;
    SimTime start_ns, mark_ns; /* measured step, end of the phase before; -1 before the first */
    LaneSums sums, start_sums; /* of the measured step: since the start of the run, up to its start */
    LaneSums end_sums;
    int64_t n_unsettled;
    GArray *run_marks; /* MoveMark, counted from the start of the fold: since the run of calls under way began */
} Fold;

static gint32 slot_token(const Fold *fold, guint slot)
{
    return g_array_index(fold->slots, gint32, slot);
}

/* ---- moments ---- */

/* Takes the state up in the lanes. */
static void load_state(Fold *fold)
{
    size_t n_bytes;
    const int64_t *words = intern_get(fold->memo->states, (guint32)fold->state, &n_bytes);
    fold->host_ns = fold->now_ns + words[0];
    size_t at = 1 + lanes_load(fold->lanes, words + 1, fold->now_ns);
    memset(fold->points, 0, sizeof *fold->points * (size_t)fold->program->n_tokens);
    for (guint i = 0; i < fold->slots->len; i++, at += 2) {
        fold->points[slot_token(fold, i)] = (LanePoint){(int)words[at], (uint64_t)words[at + 1]};
    }
    fold->in_lanes = TRUE;
}

static void add_pending(const Fold *fold, gint32 token, gint16 origin, guint *n)
{
    Pending *list = fold->pending;
    LanePoint point = fold->points[token];
    if (lanes_reached(fold->lanes, point)) {
        return;
    }
    Pending pending = {token, origin, lanes_relative(fold->lanes, point)};
    guint at = *n;
    for (guint i = 0; i < *n; i++) {
        if (list[i].token == token) {
            return;
        }
    }
    while (at > 0 && (list[at - 1].left.lane > pending.left.lane ||
                      (list[at - 1].left.lane == pending.left.lane && list[at - 1].left.n > pending.left.n))) {
        list[at] = list[at - 1];
        at--;
    }
    list[at] = pending;
    ++*n;
}

/* Names the moment in the lanes: fills the move's state, its pending tokens and their origins. */
static void store_state(Fold *fold, const gint32 *tokens, guint n_tokens, Move *move)
{
    GArray *words = fold->memo->words;
    gboolean was_state = fold->state >= 0, is_new;
    guint n = 0;
    move->state = fold->state = -1;
    if (lanes_n_pending(fold->lanes) > PENDING_MAX) {
        return;
    }
    for (guint i = 0; i < n_tokens; i++) {
        add_pending(fold, tokens[i], (gint16)i, &n);
    }
    for (guint i = 0; was_state && i < fold->slots->len; i++) {
        add_pending(fold, slot_token(fold, i), (gint16)(-1 - (gint16)i), &n);
    }
    for (gint32 token = 0; !was_state && token < fold->program->n_tokens; token++) {
        add_pending(fold, token, 0, &n);
    }
    if (n > VIEW_SLOTS_MAX) {
        return;
    }
    g_array_set_size(fold->slots, 0);
    g_array_set_size(words, 1);
    g_array_index(words, int64_t, 0) = fold->host_ns - fold->now_ns;
    lanes_store(fold->lanes, words);
    move->n_slots = n;
    for (guint i = 0; i < n; i++) {
        const Pending *pending = &fold->pending[i];
        int64_t pair[] = {pending->left.lane, (int64_t)pending->left.n};
        g_array_append_vals(words, pair, 2);
        g_array_append_val(fold->slots, pending->token);
        move->origins[i] = pending->origin;
    }
    move->state = intern_bytes(fold->memo->states, words->data, words->len * sizeof(int64_t), &is_new);
    fold->state = move->state;
}

/* ---- moves ---- */

static gboolean push_item(Fold *fold, const ViewItem *item, const gint32 *tokens)
{
    Lanes *lanes = fold->lanes;
    LanePoint point;
    switch ((ViewItemKind)item->kind) {
    case VIEW_WORK:
        lanes_push_work(lanes, item->lane, &(ShareWork){(int)item->cls, item->duration_ns, item->value}, fold->host_ns + item->offset_ns);
        fold->host_ns += item->host_ns;
        return TRUE;
    case VIEW_RECORD:
        fold->points[tokens[item->value]] = lanes_point(lanes, item->lane);
        return TRUE;
    case VIEW_WAIT:
        point = fold->points[tokens[item->value]];
        if (!lanes_reached(lanes, point)) {
            lanes_push_wait(lanes, item->lane, point);
        }
        return TRUE;
    case VIEW_HOST:
        fold->host_ns += item->host_ns;
        return TRUE;
    case VIEW_SYNC:
        point = lanes_point(lanes, item->lane);
        if (!lanes_run(lanes, &point)) {
            return FALSE;
        }
        fold->host_ns = MAX(fold->host_ns, lanes_now(lanes)) + item->host_ns;
        return TRUE;
    case VIEW_MARK:
        lanes_push_mark(lanes, item->lane, (guint32)item->value);
        return TRUE;
    case VIEW_DRAIN:
    default:
        return lanes_run(lanes, NULL);
    }
}

static void sums_add(LaneSums *sums, const LaneSums *more, int64_t times)
{
    for (int i = 0; i < LANE_SUMS_MAX; i++) {
        sums->ns[i] += times * more->ns[i];
    }
}

static LaneSums sums_minus(const LaneSums *a, const LaneSums *b)
{
    LaneSums difference = *a;
    sums_add(&difference, b, -1);
    return difference;
}

/* The end of a phase, in a move that began at from_ns: so the measured step begins, and what it sums up. */
static void note_mark(Fold *fold, const MoveMark *mark, SimTime from_ns)
{
    StepTimes *times = fold->times;
    SimTime ns = from_ns + mark->ns;
    times->phase_ns[mark->phase] += ns - fold->mark_ns;
    fold->mark_ns = ns;
    fold->end_sums = fold->sums;
    sums_add(&fold->end_sums, &mark->sums, 1);
    MoveMark noted = {mark->phase, ns, fold->end_sums};
    g_array_append_val(fold->run_marks, noted);
    if (mark->phase == PHASE_OPTIMIZER && fold->start_ns < 0) {
        fold->start_ns = ns;
        fold->start_sums = fold->end_sums;
        memset(times->phase_ns, 0, sizeof times->phase_ns);
    }
}

/* Simulates a call from the moment in the lanes. FALSE: the program blocks itself. */
static gboolean simulate(Fold *fold, const TimeView *view, const gint32 *tokens, Move *ret_move)
{
    LaneSums before = *lanes_sums(fold->lanes);
    SimTime from_ns = fold->now_ns;
    memset(ret_move, 0, sizeof *ret_move);
    lanes_clear_marks(fold->lanes);
    for (guint i = 0; i < view->n_items; i++) {
        if (!push_item(fold, &view->items[i], tokens)) {
            return FALSE;
        }
    }
    fold->now_ns = lanes_now(fold->lanes);
    ret_move->ns = fold->now_ns - from_ns;
    ret_move->sums = sums_minus(lanes_sums(fold->lanes), &before);
    const LaneMark *marks = lanes_marks(fold->lanes, &ret_move->n_marks);
    for (guint i = 0; i < ret_move->n_marks; i++) {
        MoveMark mark = {marks[i].value, marks[i].ns - from_ns, sums_minus(&marks[i].sums, &before)};
        note_mark(fold, &mark, from_ns);
        if (i < MOVE_MARKS_MAX) {
            ret_move->marks[i] = mark;
        }
    }
    fold->memo->n_simulated++;
    return TRUE;
}

static void apply_slots(Fold *fold, const Move *move, const gint32 *tokens)
{
    gint32 slots[VIEW_SLOTS_MAX];
    for (guint i = 0; i < move->n_slots; i++) {
        gint16 origin = move->origins[i];
        slots[i] = origin >= 0 ? tokens[origin] : slot_token(fold, (guint)(-1 - origin));
    }
    g_array_set_size(fold->slots, 0);
    g_array_append_vals(fold->slots, slots, move->n_slots);
}

/* What a move depends on; as many places as the view has. */
typedef struct MoveKey {
    int64_t law, view, state;
    gint16 bound[VIEW_PLACES_MAX + 4]; /* pending token, or an earlier place of the same token, or neither */
} MoveKey;

/* Which of the state's pending tokens each place of the view names: what else a move depends on. */
static guint32 move_key(Fold *fold, const TimeView *view, const gint32 *tokens, gboolean *ret_is_new)
{
    MoveKey key;
    size_t n_bytes = offsetof(MoveKey, bound) + (size_t)quantity_round_up(view->n_places, 4) * sizeof key.bound[0];
    memset(&key, 0, n_bytes);
    key.law = fold->law;
    key.view = view->id;
    key.state = fold->state;
    for (guint i = 0; i < view->n_places; i++) {
        gint16 bound = -1;
        for (guint k = 0; k < fold->slots->len && bound < 0; k++) {
            bound = slot_token(fold, k) == tokens[i] ? (gint16)k : -1;
        }
        for (guint k = 0; k < i; k++) {
            bound = tokens[k] == tokens[i] ? (gint16)(VIEW_SLOTS_MAX + k) : bound;
        }
        key.bound[i] = bound;
    }
    return intern_bytes(fold->memo->keys, &key, n_bytes, ret_is_new);
}

/* One call: looked up if it can be. */
static gboolean make_move(Fold *fold, const TimeView *view, const Call *call)
{
    StepMemo *memo = fold->memo;
    gint32 tokens[VIEW_PLACES_MAX];
    gboolean is_new = TRUE, is_named = fold->state >= 0;
    Move move;
    for (guint i = 0; i < view->n_places; i++) {
        tokens[i] = program_resolve(call, view->places[i]);
    }
    guint32 key = is_named ? move_key(fold, view, tokens, &is_new) : 0;
    if (is_named && !is_new && g_array_index(memo->moves, Move, key).n_slots != G_MAXUINT32) {
        move = g_array_index(memo->moves, Move, key);
        for (guint i = 0; i < move.n_marks; i++) {
            note_mark(fold, &move.marks[i], fold->now_ns);
        }
        fold->now_ns += move.ns;
        fold->state = move.state;
        fold->in_lanes = FALSE;
        apply_slots(fold, &move, tokens);
        memo->n_looked_up++;
    } else {
        if (!fold->in_lanes) {
            load_state(fold);
        }
        if (!simulate(fold, view, tokens, &move)) {
            return FALSE;
        }
        store_state(fold, tokens, view->n_places, &move);
        if (is_named) {
            if (move.state < 0 || move.n_marks > MOVE_MARKS_MAX) {
                move.n_slots = G_MAXUINT32; /* leads out of what can be looked up, or does too much for it */
            }
            g_array_set_size(memo->moves, MAX(memo->moves->len, key + 1));
            g_array_index(memo->moves, Move, key) = move;
        }
    }
    sums_add(&fold->sums, &move.sums, 1);
    return TRUE;
}

/* ---- runs of calls ---- */

/* A place in a run that nothing is known of: what leads on from it. */
typedef struct RunStop {
    guint32 key;
    SimTime now_ns;
    LaneSums sums;
    guint n_marks; /* noted before */
} RunStop;

/* The key of a place in a run: what the rest of the run depends on. */
static guint32 run_key(Fold *fold, const ProgramRun *run, guint place, gboolean *ret_is_new)
{
    GArray *words = fold->memo->words;
    const ProgramClock *clock = &fold->program->clock;
    int64_t head[] = {fold->law, (int64_t)run->id << 32 | place, clock->side, 0, fold->state, fold->slots->len};
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
        note_mark(fold, &move->marks[i], fold->now_ns);
    }
    fold->now_ns += move->ns;
    fold->state = move->state;
    fold->in_lanes = FALSE;
    g_array_set_size(fold->slots, 0);
    if (move->n_slots > 0) {
        g_array_append_vals(fold->slots, &g_array_index(fold->memo->run_slots, gint32, move->first_slot), move->n_slots);
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
        if (n_marks > MOVE_MARKS_MAX) {
            continue;
        }
        *move = (RunMove){.state = fold->state, .ns = fold->now_ns - stops[i].now_ns, .sums = sums_minus(&fold->sums, &stops[i].sums),
                          .n_marks = n_marks, .n_slots = fold->slots->len, .first_slot = first_slot};
        for (guint k = 0; k < n_marks; k++) {
            const MoveMark *mark = &g_array_index(fold->run_marks, MoveMark, stops[i].n_marks + k);
            move->marks[k] = (MoveMark){mark->phase, mark->ns - stops[i].now_ns, sums_minus(&mark->sums, &stops[i].sums)};
        }
    }
}

/*
 * The calls of a run, up to a place from which the rest is known: moments soon become alike that were different when the run
 * began, so places at its beginning are asked at each call, later ones now and then.
 */
static gboolean make_run(Fold *fold, const ProgramRun *run)
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
            if (known->state >= 0) {
                apply_run(fold, known);
                break;
            }
            if (n_stops < STOPS_MAX) {
                stops[n_stops++] = (RunStop){key, fold->now_ns, fold->sums, fold->run_marks->len};
            }
        }
        const Call *call = &g_array_index(fold->program->calls, Call, run->first + place);
        if (!make_move(fold, &fold->views[call->segment], call)) {
            return FALSE;
        }
    }
    keep_stops(fold, stops, n_stops);
    return TRUE;
}

/* ---- repeated micro-batches ---- */

static void turn_clear(void *data)
{
    g_array_unref(((Turn *)data)->slots);
}

static gboolean turn_is_like(const Turn *turn, const Fold *fold)
{
    return turn->state == fold->state && turn->now_ns - turn->mark_ns == fold->now_ns - fold->mark_ns &&
           turn->slots->len == fold->slots->len &&
           (turn->slots->len == 0 || memcmp(turn->slots->data, fold->slots->data, turn->slots->len * sizeof(gint32)) == 0);
}

/* The machine stands as it stood at an earlier turn: what happened since then happens again and again. Returns the turns left
 * out. */
static int64_t skip_turns(Fold *fold, const Turn *turn, int64_t period, int64_t left)
{
    int64_t n = left / period;
    LaneSums sums = sums_minus(&fold->sums, &turn->sums);
    SimTime ns = fold->now_ns - turn->now_ns;
    for (int p = 0; p < N_PHASES; p++) {
        fold->times->phase_ns[p] += n * (fold->times->phase_ns[p] - turn->phase_ns[p]);
    }
    sums_add(&fold->sums, &sums, n);
    fold->now_ns += n * ns;
    fold->mark_ns += n * ns;
    fold->in_lanes = FALSE;
    return n * period;
}

/* Before the repeated block runs for the n_done-th time (from 0). Returns how many of its runs need no running. */
static int64_t begin_turn(Fold *fold, GArray *turns, int64_t n_done)
{
    int64_t left = fold->program->repeat.times - n_done;
    if (fold->state < 0) {
        fold->n_unsettled++;
        return 0;
    }
    for (guint i = turns->len; i-- > 0;) {
        const Turn *turn = &g_array_index(turns, Turn, i);
        if (turn_is_like(turn, fold)) {
            return skip_turns(fold, turn, turns->len - i, left);
        }
    }
    Turn turn = {.state = fold->state, .slots = g_array_new(FALSE, FALSE, sizeof(gint32)), .now_ns = fold->now_ns,
                 .mark_ns = fold->mark_ns, .sums = fold->sums};
    g_array_append_vals(turn.slots, fold->slots->data, fold->slots->len);
    memcpy(turn.phase_ns, fold->times->phase_ns, sizeof turn.phase_ns);
    g_array_append_val(turns, turn);
    return 0;
}

/* The run that begins with a call, or NULL. *r: a place in the list of runs to look at first. */
static const ProgramRun *find_run(const Program *program, guint call, guint *r)
{
    const GArray *runs = program->runs;
    if (*r > 0 && g_array_index(runs, ProgramRun, *r - 1).first >= call) {
        *r = 0; /* the repeated block once more */
    }
    while (*r < runs->len && g_array_index(runs, ProgramRun, *r).first < call) {
        ++*r;
    }
    const ProgramRun *run = *r < runs->len ? &g_array_index(runs, ProgramRun, *r) : NULL;
    return run != NULL && run->first == call ? run : NULL;
}

/* One step: every call, the repeated block as often as it must. *ret_settled FALSE: it never comes back to where it was. */
static gboolean run_round(Fold *fold, gboolean *ret_settled)
{
    const Program *program = fold->program;
    int64_t n_done = 0;
    guint r = 0;
    g_autoptr(GArray) turns = g_array_new(FALSE, FALSE, sizeof(Turn));
    g_array_set_clear_func(turns, turn_clear);
    fold->n_unsettled = 0;
    for (guint c = 0; c < program->calls->len; c = program_next_call(program, c, program->repeat.times, &n_done)) {
        if (program->repeat.times > 1 && c == program->repeat.first) {
            n_done += begin_turn(fold, turns, n_done);
            if (fold->n_unsettled > UNSETTLED_MAX) {
                *ret_settled = FALSE;
                return TRUE;
            }
            if (n_done == program->repeat.times) {
                c += program->repeat.n - 1;
                n_done--;
                continue;
            }
        }
        const ProgramRun *run = find_run(program, c, &r);
        const Call *call = &g_array_index(program->calls, Call, c);
        if (!(run != NULL ? make_run(fold, run) : make_move(fold, &fold->views[call->segment], call))) {
            return FALSE;
        }
        c += run != NULL ? run->n - 1 : 0;
    }
    return TRUE;
}

static guint32 law_number(StepMemo *memo, const ShareLaw *law)
{
    size_t n;
    gboolean is_new;
    const guint32 *numbers = share_law_numbers(law, &n);
    g_array_set_size(memo->words, (guint)(n + 1) / 2);
    g_array_index(memo->words, int64_t, memo->words->len - 1) = 0;
    memcpy(memo->words->data, numbers, n * sizeof *numbers);
    return intern_bytes(memo->laws, memo->words->data, memo->words->len * sizeof(int64_t), &is_new);
}

static gboolean run_rounds(Fold *fold, gboolean *ret_settled)
{
    const Call nothing = {.segment = -1};
    TimeView drain = step_view_drain(fold->memo);
    *ret_settled = TRUE;
    for (int round = 0; round < N_ROUNDS && *ret_settled; round++) {
        if (!run_round(fold, ret_settled)) {
            return FALSE;
        }
    }
    return !*ret_settled || make_move(fold, &drain, &nothing);
}

gboolean step_fold(StepMemo *memo, const ShareLaw *law, const Program *program, StepTimes *times, gboolean *ret_settled)
{
    g_autofree TimeView *views = g_new(TimeView, program->segments->len + 1);
    g_autofree LanePoint *points = g_new0(LanePoint, program->n_tokens + 1);
    g_autofree Pending *pending = g_new(Pending, program->n_tokens + 1);
    g_autoptr(GArray) slots = g_array_new(FALSE, FALSE, sizeof(gint32)), run_marks = g_array_new(FALSE, FALSE, sizeof(MoveMark));
    Move start = {0};
    Fold fold = {.memo = memo, .lanes = memo->lanes, .program = program, .times = times, .views = views, .points = points,
                 .slots = slots, .run_marks = run_marks, .pending = pending, .start_ns = -1, .in_lanes = TRUE};
    fold.law = law_number(memo, law);
    for (guint s = 0; s < program->segments->len; s++) {
        views[s] = step_view(memo, program_segment(program, (int)s), &program->clock);
        if (views[s].n_places > VIEW_PLACES_MAX) {
            *ret_settled = FALSE;
            return TRUE;
        }
    }
    lanes_reset(memo->lanes, law);
    store_state(&fold, NULL, 0, &start);
    uint64_t n_events = lanes_n_events(memo->lanes);
    gboolean ok = run_rounds(&fold, ret_settled);
    if (!ok || !*ret_settled) {
        return ok;
    }
    LaneSums sums = sums_minus(&fold.end_sums, &fold.start_sums);
    times->step_ns = fold.mark_ns - fold.start_ns;
    times->exposed_comm_ns = sums.ns[STEP_SUM_COMM];
    times->exposed_copy_ns = sums.ns[STEP_SUM_COPY];
    times->exposed_host_ns = sums.ns[STEP_SUM_IDLE];
    times->crowded_ns = sums.ns[STEP_SUM_CROWDED];
    times->n_events = lanes_n_events(memo->lanes) - n_events;
    return TRUE;
}
