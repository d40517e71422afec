#include <string.h>

#include "workloads/run/step-fold.h"

/* The view of a segment that several programs share. */
typedef struct KnownView {
    Segment *segment; /* with a reference: its address is its name */
    gint64 side;
    double part;
    TimeView view;
    SegmentCounts counts;
    gboolean has_view, has_counts;
} KnownView;

/* A view in bytes: its counts, its places, its items. */
typedef struct ViewHead {
    gint64 n_places, n_items;
} ViewHead;

/* What a table takes beside an entry. */
enum { KNOWN_SLOT_BYTES = 64 };

static guint known_hash(const void *data)
{
    const KnownView *known = data;
    uint64_t part;
    memcpy(&part, &known->part, sizeof part);
    uint64_t hash = ((uint64_t)(uintptr_t)known->segment ^ part * 0xff51afd7ed558ccdu) * 0x9e3779b97f4a7c15u;
    return (guint)(hash >> 32) ^ (guint)known->side;
}

static gboolean known_equal(const void *a, const void *b)
{
    const KnownView *x = a, *y = b;
    return x->segment == y->segment && x->side == y->side && memcmp(&x->part, &y->part, sizeof x->part) == 0;
}

static void known_free(void *data)
{
    KnownView *known = data;
    segment_unref(known->segment);
    step_counts_clear(&known->counts);
    g_free(data);
}

static guint facts_hash(const void *data)
{
    const RunFacts *facts = data;
    uint64_t part;
    memcpy(&part, &facts->part, sizeof part);
    return (guint)((facts->id ^ part * 0xff51afd7ed558ccdu) * 0x9e3779b97f4a7c15u >> 32) ^ (guint)facts->side;
}

static gboolean facts_equal(const void *a, const void *b)
{
    const RunFacts *x = a, *y = b;
    return x->id == y->id && x->side == y->side && memcmp(&x->part, &y->part, sizeof x->part) == 0;
}

static void facts_free(void *data)
{
    RunFacts *facts = data;
    step_counts_clear(&facts->counts);
    g_free(facts);
}

static void memo_start(StepMemo *memo)
{
    memo->runs = g_hash_table_new_full(facts_hash, facts_equal, facts_free, NULL);
    memo->known = g_hash_table_new_full(known_hash, known_equal, known_free, NULL);
    memset(memo->latest, 0, sizeof memo->latest);
}

StepMemo *step_memo_new(void)
{
    enum { LANES_OF_COMM = 1u << STREAM_GATHER | 1u << STREAM_REDUCE | 1u << STREAM_ALL_TO_ALL };
    static const LaneWatch watches[N_STEP_SUMS] = {
        [STEP_SUM_COMM] = {LANES_OF_COMM, 1u << STREAM_COMPUTE, FALSE},
        [STEP_SUM_COPY] = {1u << STREAM_COPY_OUT | 1u << STREAM_COPY_IN, 1u << STREAM_COMPUTE | LANES_OF_COMM, FALSE},
        [STEP_SUM_IDLE] = {0, 0, FALSE},
        [STEP_SUM_CROWDED] = {0, 0, TRUE}};
    StepMemo *memo = g_new0(StepMemo, 1);
    memo->laws = intern_new();
    memo->views = intern_new();
    memo->states = intern_new();
    memo->keys = intern_new();
    memo->moves = g_array_new(FALSE, FALSE, sizeof(Move));
    memo->run_keys = intern_new();
    memo->run_moves = g_array_new(FALSE, TRUE, sizeof(RunMove));
    memo->run_slots = g_array_new(FALSE, FALSE, sizeof(gint32));
    memo->ahead_min = AHEAD_USUAL;
    memo->kept_back = g_hash_table_new(NULL, NULL);
    memo->lanes = lanes_new(N_STREAMS, watches, N_STEP_SUMS);
    memo->words = g_array_new(FALSE, FALSE, sizeof(int64_t));
    memo->items = g_array_new(FALSE, FALSE, sizeof(ViewItem));
    memo->places = g_array_new(FALSE, FALSE, sizeof(Place));
    memo->points = g_array_new(FALSE, TRUE, sizeof(LanePoint));
    memo->pending = g_array_new(FALSE, FALSE, sizeof(Pending));
    memo->pointed = g_array_new(FALSE, FALSE, sizeof(gint32));
    memo_start(memo);
    return memo;
}

void step_memo_free(StepMemo *memo)
{
    if (memo == NULL) {
        return;
    }
    share_law_free(memo->law);
    cluster_free(memo->cluster);
    intern_free(memo->laws);
    intern_free(memo->views);
    intern_free(memo->states);
    intern_free(memo->keys);
    g_array_unref(memo->moves);
    intern_free(memo->run_keys);
    g_array_unref(memo->run_moves);
    g_array_unref(memo->run_slots);
    g_hash_table_unref(memo->kept_back);
    g_hash_table_unref(memo->known);
    g_hash_table_unref(memo->runs);
    lanes_free(memo->lanes);
    g_array_unref(memo->words);
    g_array_unref(memo->items);
    g_array_unref(memo->places);
    g_array_unref(memo->points);
    g_array_unref(memo->pending);
    g_array_unref(memo->pointed);
    step_counts_clear(&memo->counts);
    g_free(memo);
}

size_t step_memo_size_bytes(const StepMemo *memo)
{
    return intern_size_bytes(memo->views) + intern_size_bytes(memo->states) + intern_size_bytes(memo->keys) +
           memo->moves->len * sizeof(Move) + memo->known_bytes + intern_size_bytes(memo->run_keys) +
           memo->run_moves->len * sizeof(RunMove) + memo->run_slots->len * sizeof(gint32);
}

void step_memo_clear(StepMemo *memo)
{
    intern_clear(memo->laws);
    memo->numbered_law = NULL;
    intern_clear(memo->views);
    intern_clear(memo->states);
    intern_clear(memo->keys);
    g_array_set_size(memo->moves, 0);
    intern_clear(memo->run_keys);
    g_array_set_size(memo->run_moves, 0);
    g_array_set_size(memo->run_slots, 0);
    g_hash_table_remove_all(memo->kept_back);
    g_hash_table_unref(memo->known);
    g_hash_table_unref(memo->runs);
    memo->known_bytes = 0;
    memo_start(memo);
}

static guint32 find_place(StepMemo *memo, Place place)
{
    for (guint i = 0; i < memo->places->len; i++) {
        const Place *known = &g_array_index(memo->places, Place, i);
        if (known->arg == place.arg && known->idx == place.idx) {
            return i;
        }
    }
    g_array_append_val(memo->places, place);
    return memo->places->len - 1;
}

/* A kernel of several launches starts with the first and ends no earlier than one launch after the last was issued. */
static ViewItem work_item(const Instr *instr, const ProgramClock *clock)
{
    SimTime device_ns = program_instr_ns(clock, instr);
    SimTime one_host = instr->host_ns / instr->n_launches, one_device = device_ns / instr->n_launches;
    return (ViewItem){.kind = VIEW_WORK,
                      .lane = instr->stream,
                      .cls = instr->share,
                      .value = instr->load & LINK_LOAD_MASK,
                      .duration_ns = device_ns,
                      .host_ns = instr->host_ns,
                      .offset_ns = MAX(one_host, instr->host_ns + one_device - device_ns)};
}

static gboolean view_item(StepMemo *memo, const Instr *instr, const ProgramClock *clock, ViewItem *ret_item)
{
    switch ((InstrKind)instr->kind) {
    case INSTR_COMPUTE:
    case INSTR_COLLECTIVE:
        *ret_item = work_item(instr, clock);
        return TRUE;
    case INSTR_RECORD:
    case INSTR_WAIT:
        *ret_item = (ViewItem){.kind = instr->kind == INSTR_RECORD ? VIEW_RECORD : VIEW_WAIT,
                               .lane = instr->stream,
                               .value = find_place(memo, instr->place)};
        return TRUE;
    case INSTR_HOST:
        *ret_item = (ViewItem){.kind = VIEW_HOST, .host_ns = instr->host_ns};
        return TRUE;
    case INSTR_HOST_SYNC:
        *ret_item = (ViewItem){.kind = VIEW_SYNC, .lane = instr->stream, .host_ns = instr->host_ns};
        return TRUE;
    case INSTR_MARK:
        *ret_item = (ViewItem){.kind = VIEW_MARK, .lane = instr->stream, .value = instr->phase};
        return TRUE;
    case INSTR_ALLOC:
    case INSTR_FREE:
    case INSTR_MOVE:
    case INSTR_VALUE:
    default:
        return FALSE;
    }
}

/* The number of the items and places gathered, and where they lie from now on. */
static TimeView intern_view(StepMemo *memo)
{
    ViewHead head = {memo->places->len, memo->items->len};
    size_t n_places = memo->places->len * sizeof(Place), n_items = memo->items->len * sizeof(ViewItem), n_bytes;
    gboolean is_new;
    g_array_set_size(memo->words, (guint)((sizeof head + n_places + n_items) / sizeof(int64_t)));
    char *bytes = memo->words->data;
    memcpy(bytes, &head, sizeof head);
    if (n_places > 0) {
        memcpy(bytes + sizeof head, memo->places->data, n_places);
    }
    if (n_items > 0) {
        memcpy(bytes + sizeof head + n_places, memo->items->data, n_items);
    }
    TimeView view = {.id = intern_bytes(memo->views, bytes, sizeof head + n_places + n_items, &is_new),
                     .n_places = memo->places->len,
                     .n_items = memo->items->len};
    const char *kept = intern_get(memo->views, view.id, &n_bytes);
    for (guint i = 0; i < memo->items->len; i++) {
        const ViewItem *item = &g_array_index(memo->items, ViewItem, i);
        view.reach_ns = MAX(view.reach_ns, view.host_ns + item->offset_ns);
        view.host_ns += item->host_ns;
        view.syncs = view.syncs || item->kind == VIEW_SYNC;
    }
    view.places = (const Place *)(const void *)(kept + sizeof head);
    view.items = (const ViewItem *)(const void *)(kept + sizeof head + n_places);
    return view;
}

static TimeView make_view(StepMemo *memo, const Segment *segment, const ProgramClock *clock)
{
    g_array_set_size(memo->items, 0);
    g_array_set_size(memo->places, 0);
    for (guint i = 0; i < segment->instrs->len; i++) {
        ViewItem item;
        if (view_item(memo, &g_array_index(segment->instrs, Instr, i), clock, &item)) {
            g_array_append_val(memo->items, item);
        }
    }
    if (memo->places->len > VIEW_PLACES_MAX) {
        return (TimeView){.n_places = memo->places->len};
    }
    return intern_view(memo);
}

/* What is remembered of a segment at a clock; NULL: it belongs to one program alone. */
static KnownView *find_known(StepMemo *memo, Segment *segment, const ProgramClock *clock)
{
    KnownView wanted = {.segment = segment, .side = clock->side, .part = clock->part};
    if (segment->n_refs == 1) {
        return NULL;
    }
    uintptr_t address = (uintptr_t)segment;
    KnownView **latest = &memo->latest[(address >> 4 ^ address >> 13) % STEP_LATEST];
    if (*latest != NULL && known_equal(*latest, &wanted)) {
        return *latest;
    }
    KnownView *known = g_hash_table_lookup(memo->known, &wanted);
    if (known == NULL) {
        known = g_new0(KnownView, 1);
        *known = wanted;
        segment_ref(segment);
        g_hash_table_insert(memo->known, known, known);
        memo->known_bytes += sizeof *known + KNOWN_SLOT_BYTES;
    }
    *latest = known;
    return known;
}

TimeView step_view(StepMemo *memo, Segment *segment, const ProgramClock *clock)
{
    KnownView *known = find_known(memo, segment, clock);
    if (known == NULL) {
        return make_view(memo, segment, clock);
    }
    if (!known->has_view) {
        known->view = make_view(memo, segment, clock);
        known->has_view = TRUE;
    }
    return known->view;
}

const SegmentCounts *step_counts(StepMemo *memo, Segment *segment, const ProgramClock *clock)
{
    KnownView *known = find_known(memo, segment, clock);
    if (known == NULL) {
        step_counts_clear(&memo->counts);
        step_count_segment(segment, clock, &memo->counts);
        return &memo->counts;
    }
    if (!known->has_counts) {
        step_count_segment(segment, clock, &known->counts);
        known->has_counts = TRUE;
        memo->known_bytes += known->counts.n_labels * sizeof *known->counts.labels + known->counts.n_colls * sizeof *known->counts.colls;
    }
    return &known->counts;
}

TimeView step_view_drain(StepMemo *memo)
{
    ViewItem item = {.kind = VIEW_DRAIN};
    g_array_set_size(memo->items, 0);
    g_array_set_size(memo->places, 0);
    g_array_append_val(memo->items, item);
    return intern_view(memo);
}
