#include <stddef.h>
#include <string.h>

#include "workloads/run/step-fold.h"

enum { N_ROUNDS = 2, UNSETTLED_MAX = 8 };

/* Where the repeated block began, as often as it has begun. */
typedef struct Turn {
    gint64 state;
    GArray *slots; /* pending tokens, as Fold.slots */
    SimTime now_ns, host_ns, mark_ns;
    LaneSums sums;
    SimTime phase_ns[N_PHASES];
} Turn;

static gint32 slot_token(const Fold *fold, guint slot)
{
    return g_array_index(fold->slots, gint32, slot);
}

/* ---- moments ---- */

/* In place of how far the host is ahead. */
static const int64_t FAR = G_MAXINT64;

static int64_t host_word(const Fold *fold, gint64 state)
{
    size_t n_bytes;
    return *(const int64_t *)intern_get(fold->memo->states, (guint32)state, &n_bytes);
}

gboolean fold_is_far(const Fold *fold)
{
    return fold->runs_ahead && fold->state >= 0 && host_word(fold, fold->state) == FAR;
}

void fold_come_near(Fold *fold)
{
    GArray *words = fold->memo->words;
    size_t n_bytes;
    gboolean is_new;
    const int64_t *far = intern_get(fold->memo->states, (guint32)fold->state, &n_bytes);
    g_array_set_size(words, 0);
    g_array_append_vals(words, far, (guint)(n_bytes / sizeof *far));
    g_array_index(words, int64_t, 0) = -fold_lead_ns(fold);
    fold->state = intern_bytes(fold->memo->states, words->data, n_bytes, &is_new);
}

/* Tokens stand for nothing. */
static void clear_points(Fold *fold)
{
    const GArray *pointed = fold->memo->pointed;
    for (guint i = 0; i < pointed->len; i++) {
        fold->points[g_array_index(pointed, gint32, i)] = (LanePoint){0};
    }
    g_array_set_size(fold->memo->pointed, 0);
}

static void set_point(Fold *fold, gint32 token, LanePoint point)
{
    fold->points[token] = point;
    g_array_append_val(fold->memo->pointed, token);
}

/* Takes the state up in the lanes. */
static void load_state(Fold *fold)
{
    size_t n_bytes;
    const int64_t *words = intern_get(fold->memo->states, (guint32)fold->state, &n_bytes);
    fold->host_ns = words[0] != FAR ? fold->now_ns + words[0] : fold->host_ns;
    size_t at = 1 + lanes_load(fold->lanes, words + 1, fold->now_ns);
    clear_points(fold);
    for (guint i = 0; i < fold->slots->len; i++, at += 2) {
        set_point(fold, slot_token(fold, i), (LanePoint){(int)words[at], (uint64_t)words[at + 1]});
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
    g_array_index(words, int64_t, 0) = fold->runs_ahead && fold_lead_ns(fold) >= FAR_NS ? FAR : -fold_lead_ns(fold);
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

/* Whether what is pushed to start no earlier than ns could have begun before now, had it been there. */
static gboolean comes_late(const Fold *fold, int lane, SimTime ns)
{
    return ns < lanes_now(fold->lanes) && lanes_is_idle(fold->lanes, lane);
}

static gboolean push_item(Fold *fold, const ViewItem *item, const gint32 *tokens)
{
    Lanes *lanes = fold->lanes;
    LanePoint point;
    switch ((ViewItemKind)item->kind) {
    case VIEW_WORK:
        fold->is_late = fold->is_late || comes_late(fold, item->lane, fold->host_ns + item->offset_ns);
        lanes_push_work(lanes, item->lane, &(ShareWork){(int)item->cls, item->duration_ns, item->value}, fold->host_ns + item->offset_ns);
        fold->host_ns += item->host_ns;
        return TRUE;
    case VIEW_RECORD:
        set_point(fold, tokens[item->value], lanes_point(lanes, item->lane));
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
        fold->is_late = fold->is_late || (fold->host_ns < lanes_now(lanes) && lanes_reached(lanes, point));
        if (!lanes_run(lanes, &point)) {
            return FALSE;
        }
        fold->host_ns = MAX(fold->host_ns, lanes_now(lanes)) + item->host_ns;
        return TRUE;
    case VIEW_MARK:
        fold->is_late = fold->is_late || comes_late(fold, item->lane, fold->host_ns);
        lanes_push_mark(lanes, item->lane, (guint32)item->value);
        return TRUE;
    case VIEW_DRAIN:
    default:
        return lanes_run(lanes, NULL);
    }
}

void fold_note_mark(Fold *fold, const MoveMark *mark, SimTime from_ns)
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

/*
 * The host is far ahead: the lanes do everything that was pushed to the compute stream before this call, so that what is pending
 * stays little. FALSE: they block.
 */
static gboolean run_ahead(Fold *fold, LanePoint before)
{
    gboolean has_more = lanes_point(fold->lanes, STREAM_COMPUTE).n > before.n;
    if (!fold->runs_ahead || !has_more || lanes_n_pending(fold->lanes) <= fold->memo->ahead_min) {
        return TRUE;
    }
    fold->memo->n_ran_ahead++;
    LanePoint all = lanes_point(fold->lanes, STREAM_COMPUTE);
    return lanes_run(fold->lanes, fold->memo->ahead_whole ? &all : &before);
}

/* Simulates a call from the moment in the lanes. FALSE: the program blocks itself. */
static gboolean simulate(Fold *fold, const TimeView *view, const gint32 *tokens, Move *ret_move)
{
    LaneSums before = *lanes_sums(fold->lanes);
    SimTime from_ns = fold->now_ns;
    memset(ret_move, 0, sizeof *ret_move);
    LanePoint compute = lanes_point(fold->lanes, STREAM_COMPUTE);
    lanes_clear_marks(fold->lanes);
    for (guint i = 0; i < view->n_items; i++) {
        if (!push_item(fold, &view->items[i], tokens)) {
            return FALSE;
        }
    }
    if (!run_ahead(fold, compute)) {
        return FALSE;
    }
    fold->now_ns = lanes_now(fold->lanes);
    ret_move->ns = fold->now_ns - from_ns;
    ret_move->sums = sums_minus(lanes_sums(fold->lanes), &before);
    const LaneMark *marks = lanes_marks(fold->lanes, &ret_move->n_marks);
    for (guint i = 0; i < ret_move->n_marks; i++) {
        MoveMark mark = {marks[i].value, marks[i].ns - from_ns, sums_minus(&marks[i].sums, &before)};
        fold_note_mark(fold, &mark, from_ns);
        if (i < MOVE_MARKS_MAX) {
            ret_move->marks[i] = mark;
        }
    }
    fold->memo->n_simulated++;
    return !fold->is_late; /* then nothing of it counts */
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
    key.law = fold->law_key;
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
    guint32 id = intern_bytes(fold->memo->keys, &key, n_bytes, ret_is_new);
    if (*ret_is_new) {
        Move unknown = {.n_slots = G_MAXUINT32};
        g_array_append_val(fold->memo->moves, unknown);
    }
    return id;
}

gboolean fold_make_move(Fold *fold, const TimeView *view, const Call *call)
{
    StepMemo *memo = fold->memo;
    gint32 tokens[VIEW_PLACES_MAX];
    gboolean is_new = TRUE, is_named = fold->state >= 0;
    Move move;
    fold->was_near = !fold->runs_ahead || view->syncs || (is_named && !fold_is_far(fold));
    for (guint i = 0; i < view->n_places; i++) {
        tokens[i] = program_resolve(call, view->places[i]);
    }
    guint32 key = is_named ? move_key(fold, view, tokens, &is_new) : 0;
    if (is_named && !is_new && g_array_index(memo->moves, Move, key).n_slots != G_MAXUINT32) {
        move = g_array_index(memo->moves, Move, key);
        for (guint i = 0; i < move.n_marks; i++) {
            fold_note_mark(fold, &move.marks[i], fold->now_ns);
        }
        fold->now_ns += move.ns;
        fold->host_ns = move.is_near ? fold->now_ns + move.host_ns : fold->host_ns + view->host_ns;
        fold->state = move.state;
        fold->in_lanes = FALSE;
        apply_slots(fold, &move, tokens);
        if (!move.is_near && fold_lead_ns(fold) < FAR_NS) {
            fold_come_near(fold);
        }
        memo->n_looked_up++;
    } else {
        if (!fold->in_lanes) {
            load_state(fold);
        }
        if (!simulate(fold, view, tokens, &move)) {
            return FALSE;
        }
        store_state(fold, tokens, view->n_places, &move);
        move.is_near = fold->was_near;
        move.host_ns = fold->host_ns - fold->now_ns;
        if (is_named) {
            if (move.state < 0 || move.n_marks > MOVE_MARKS_MAX || (!move.is_near && !fold_is_far(fold))) {
                move.n_slots = G_MAXUINT32; /* leads out of what can be looked up, or does too much for it */
            }
            g_array_index(memo->moves, Move, key) = move;
        }
    }
    sums_add(&fold->sums, &move.sums, 1);
    return TRUE;
}

/* ---- repeated micro-batches ---- */

static void turn_clear(void *data)
{
    g_array_unref(((Turn *)data)->slots);
}

static gboolean turn_is_like(const Turn *turn, const Fold *fold)
{
    /* a host that is far ahead must not come nearer from turn to turn */
    gboolean stays = !fold_is_far(fold) || fold_lead_ns(fold) >= turn->now_ns - turn->host_ns;
    return stays && turn->state == fold->state && turn->now_ns - turn->mark_ns == fold->now_ns - fold->mark_ns &&
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
    fold->host_ns += n * (fold->host_ns - turn->host_ns);
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
                 .host_ns = fold->host_ns, .mark_ns = fold->mark_ns, .sums = fold->sums};
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
        if (!(run != NULL ? fold_make_run(fold, run) : fold_make_move(fold, fold_view(fold, call->segment), call))) {
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
    if (law == memo->numbered_law) {
        return memo->law_number;
    }
    const guint32 *numbers = share_law_numbers(law, &n);
    g_array_set_size(memo->words, (guint)(n + 1) / 2);
    g_array_index(memo->words, int64_t, memo->words->len - 1) = 0;
    memcpy(memo->words->data, numbers, n * sizeof *numbers);
    memo->numbered_law = law;
    memo->law_number = intern_bytes(memo->laws, memo->words->data, memo->words->len * sizeof(int64_t), &is_new);
    return memo->law_number;
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
    return !*ret_settled || fold_make_move(fold, &drain, &nothing);
}

const TimeView *fold_view(Fold *fold, gint32 segment)
{
    FoldView *view = &fold->views[segment];
    if (!view->is_known) {
        view->view = step_view(fold->memo, program_segment(fold->program, segment), &fold->program->clock);
        view->is_known = TRUE;
    }
    return &view->view;
}

/*
 * Looks at what the program calls. FALSE: a segment has no view. *ret_runs_ahead: its lanes may run ahead of its host, as
 * far as is known: its calls are short enough.
 */
static gboolean look_at_calls(Fold *fold, gboolean *ret_runs_ahead)
{
    const GArray *runs = fold->program->runs;
    g_autofree int64_t *n_calls = step_calls_beside_runs(fold->program);
    SimTime ahead_ns = 0;
    guint n_places = 0;
    for (guint r = 0; r < runs->len; r++) {
        const RunFacts *facts = step_run_facts(fold->memo, fold->program, &g_array_index(runs, ProgramRun, r));
        ahead_ns = MAX(ahead_ns, facts->ahead_ns);
        n_places = MAX(n_places, facts->n_places);
    }
    for (gint32 s = 0; s < (gint32)fold->program->segments->len; s++) {
        const TimeView *view = n_calls[s] > 0 ? fold_view(fold, s) : NULL;
        ahead_ns = view != NULL ? MAX(ahead_ns, MAX(view->host_ns, view->reach_ns)) : ahead_ns;
        n_places = view != NULL ? MAX(n_places, view->n_places) : n_places;
    }
    *ret_runs_ahead = ahead_ns <= FAR_NS &&
                      (runs->len == 0 || !g_hash_table_contains(fold->memo->kept_back, GUINT_TO_POINTER(g_array_index(runs, ProgramRun, 0).id + 1)));
    return n_places <= VIEW_PLACES_MAX;
}

static void keep_back(const Fold *fold)
{
    fold->memo->n_kept_back++;
    if (fold->program->runs->len > 0) {
        g_hash_table_add(fold->memo->kept_back, GUINT_TO_POINTER(g_array_index(fold->program->runs, ProgramRun, 0).id + 1));
    }
}

/* All rounds, from the start. */
static gboolean fold_all(Fold *fold, const ShareLaw *law, gboolean runs_ahead, gboolean *ret_settled)
{
    Move start = {0};
    *fold->times = (StepTimes){0};
    fold->runs_ahead = runs_ahead;
    fold->is_late = FALSE;
    fold->law_key = (int64_t)law_number(fold->memo, law) << 1 | (runs_ahead ? 1 : 0);
    fold->in_lanes = TRUE;
    fold->state = 0;
    fold->now_ns = fold->host_ns = fold->mark_ns = 0;
    fold->start_ns = -1;
    fold->sums = fold->start_sums = fold->end_sums = (LaneSums){{0}};
    g_array_set_size(fold->slots, 0);
    clear_points(fold);
    lanes_reset(fold->lanes, law);
    store_state(fold, NULL, 0, &start);
    return run_rounds(fold, ret_settled);
}

gboolean step_fold(StepMemo *memo, const ShareLaw *law, const Program *program, StepTimes *times, gboolean *ret_settled)
{
    g_autofree FoldView *views = g_new0(FoldView, program->segments->len + 1);
    g_autoptr(GArray) slots = g_array_new(FALSE, FALSE, sizeof(gint32)), run_marks = g_array_new(FALSE, FALSE, sizeof(MoveMark));
    gboolean runs_ahead;
    g_array_set_size(memo->points, MAX(memo->points->len, (guint)program->n_tokens + 1));
    g_array_set_size(memo->pending, MAX(memo->pending->len, (guint)program->n_tokens + 1));
    Fold fold = {.memo = memo, .lanes = memo->lanes, .program = program, .times = times, .views = views,
                 .points = (LanePoint *)(void *)memo->points->data, .slots = slots, .run_marks = run_marks,
                 .pending = (Pending *)(void *)memo->pending->data};
    if (!look_at_calls(&fold, &runs_ahead)) {
        *ret_settled = FALSE;
        return TRUE;
    }
    uint64_t n_events = lanes_n_events(memo->lanes);
    gboolean ok = fold_all(&fold, law, runs_ahead, ret_settled);
    if (fold.is_late) {
        keep_back(&fold);
        ok = fold_all(&fold, law, FALSE, ret_settled);
    }
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
