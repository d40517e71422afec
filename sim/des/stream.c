#include "sim/des/stream.h"

#include "sim/base/error.h"

typedef enum ItemKind { ITEM_WORK, ITEM_JOIN, ITEM_RECORD, ITEM_WAIT, ITEM_CALL } ItemKind;

typedef struct Item {
    SimTime duration_ns, not_before_ns;
    uint64_t tag;
    gint32 ref; /* token or group */
    guint32 key;
    guint64 kind : 8; /* ItemKind */
    guint64 cls : 8;
    guint64 load : LINK_LOAD_BITS;
} Item;

typedef enum StreamState {
    STREAM_IDLE,  /* nothing to do */
    STREAM_READY, /* in the list of those that can go on, or going on */
    STREAM_BUSY,  /* its first item runs */
    STREAM_EARLY, /* its first item may not start yet */
    STREAM_TOKEN, /* waits for a token */
    STREAM_GROUP, /* waits for other members */
} StreamState;

typedef struct Stream {
    char *name;
    int device; /* -1: none */
    StreamState state;
    int place;       /* of the running activity in the device's share */
    int next;        /* stream behind this one in the line of a token or group; -1 = the last */
    guint32 head, n; /* first item, items; the ring's capacity is a power of two */
    guint32 capacity;
    Item *items;
    SimTime start_ns, busy_ns;
} Stream;

/* A line of streams, first come first served, linked by Stream.next. */
typedef struct Line {
    int first, last; /* -1 when empty */
} Line;

typedef struct Token {
    SimTime reached_ns; /* -1: not yet */
    Line line;
} Token;

typedef struct Group {
    int n_members, n_arrived, n_through;
    guint32 key;
    Line line;
} Group;

struct Streams {
    SimEngine *engine;
    StreamCallbacks callbacks;
    GPtrArray *devices; /* Share */
    GArray *streams;    /* Stream */
    GArray *tokens;     /* Token */
    GArray *groups;     /* Group */
    int *ready;         /* streams that can go on */
    size_t n_ready, n_ready_max;
    gboolean is_draining;
    SpanLog *log;
};

static const Line empty_line = {-1, -1};

static void report(void *self, GString *text);

Streams *streams_new(SimEngine *engine, const StreamCallbacks *callbacks)
{
    Streams *streams = g_new0(Streams, 1);
    streams->engine = engine;
    streams->callbacks = *callbacks;
    streams->devices = g_ptr_array_new_with_free_func((GDestroyNotify)share_free);
    streams->streams = g_array_new(FALSE, FALSE, sizeof(Stream));
    streams->tokens = g_array_new(FALSE, FALSE, sizeof(Token));
    streams->groups = g_array_new(FALSE, FALSE, sizeof(Group));
    sim_engine_watch(engine, report, streams);
    return streams;
}

/* The array may move when streams are added: a pointer holds until the next callback. */
static inline Stream *get(const Streams *streams, int stream)
{
    g_assert(stream >= 0 && (guint)stream < streams->streams->len);
    return &g_array_index(streams->streams, Stream, stream);
}

static inline Token *get_token(const Streams *streams, int token)
{
    g_assert(token >= 0 && (guint)token < streams->tokens->len);
    return &g_array_index(streams->tokens, Token, token);
}

static inline Group *get_group(const Streams *streams, int group)
{
    g_assert(group >= 0 && (guint)group < streams->groups->len);
    return &g_array_index(streams->groups, Group, group);
}

void streams_free(Streams *streams)
{
    if (streams == NULL) {
        return;
    }
    for (guint i = 0; i < streams->streams->len; i++) {
        g_free(get(streams, (int)i)->name);
        g_free(get(streams, (int)i)->items);
    }
    g_ptr_array_unref(streams->devices);
    g_array_unref(streams->streams);
    g_array_unref(streams->tokens);
    g_array_unref(streams->groups);
    g_free(streams->ready);
    g_free(streams);
}

static void on_work_end(void *self, uint64_t arg);

int streams_add_device(Streams *streams, const ShareLaw *law)
{
    g_ptr_array_add(streams->devices, share_new(streams->engine, law, on_work_end, streams));
    return (int)streams->devices->len - 1;
}

int streams_add(Streams *streams, const char *name, int device)
{
    g_assert(device >= -1 && device < (int)streams->devices->len);
    Stream stream = {.name = g_strdup(name), .device = device, .next = -1};
    g_array_append_val(streams->streams, stream);
    return (int)streams->streams->len - 1;
}

int streams_add_tokens(Streams *streams, int n)
{
    int first = (int)streams->tokens->len;
    Token token = {-1, empty_line};
    for (int i = 0; i < n; i++) {
        g_array_append_val(streams->tokens, token);
    }
    return first;
}

int streams_add_group(Streams *streams, int n_members)
{
    g_assert(n_members > 0);
    Group group = {.n_members = n_members, .line = empty_line};
    g_array_append_val(streams->groups, group);
    return (int)streams->groups->len - 1;
}

void streams_log_crowded(Streams *streams, int device, SpanLog *log, int lane)
{
    share_log_crowded(g_ptr_array_index(streams->devices, (guint)device), log, lane);
}

void streams_set_log(Streams *streams, SpanLog *log)
{
    streams->log = log;
}

static Item *item_at(const Stream *stream, guint32 i)
{
    return &stream->items[(stream->head + i) & (stream->capacity - 1)];
}

static void drain(void *self, uint64_t arg);

/* Puts a stream in the list of those that can go on. */
static void make_ready(Streams *streams, int idx)
{
    get(streams, idx)->state = STREAM_READY;
    if (streams->n_ready == streams->n_ready_max) {
        streams->n_ready_max = MAX(64, 2 * streams->n_ready_max);
        streams->ready = g_renew(int, streams->ready, streams->n_ready_max);
    }
    streams->ready[streams->n_ready++] = idx;
    if (!streams->is_draining) {
        streams->is_draining = TRUE;
        sim_engine_settle(streams->engine, drain, streams, 0);
    }
}

static void grow(Stream *stream)
{
    guint32 capacity = MAX(16, 2 * stream->capacity);
    Item *items = g_new(Item, capacity);
    for (guint32 i = 0; i < stream->n; i++) {
        items[i] = *item_at(stream, i);
    }
    g_free(stream->items);
    stream->items = items;
    stream->capacity = capacity;
    stream->head = 0;
}

static void push(Streams *streams, int idx, const Item *item)
{
    Stream *stream = get(streams, idx);
    if (stream->n == stream->capacity) {
        grow(stream);
    }
    stream->n++;
    *item_at(stream, stream->n - 1) = *item;
    if (stream->state == STREAM_IDLE) {
        make_ready(streams, idx);
    }
}

static Item work_item(const Streams *streams, int stream, ItemKind kind, const StreamWork *work)
{
    g_assert(work->duration_ns >= 0);
    g_assert(get(streams, stream)->device < 0 || (work->cls >= 0 && work->cls < SHARE_CLASSES_MAX));
    return (Item){.duration_ns = work->duration_ns,
                  .not_before_ns = work->not_before_ns,
                  .tag = work->tag,
                  .kind = (guint8)kind,
                  .cls = (guint8)work->cls,
                  .load = work->load & LINK_LOAD_MASK};
}

void streams_push_work(Streams *streams, int stream, const StreamWork *work)
{
    Item item = work_item(streams, stream, ITEM_WORK, work);
    push(streams, stream, &item);
}

void streams_push_record(Streams *streams, int stream, int token)
{
    Item item = {.kind = ITEM_RECORD, .ref = token};
    push(streams, stream, &item);
}

void streams_push_wait(Streams *streams, int stream, int token)
{
    Item item = {.kind = ITEM_WAIT, .ref = token};
    push(streams, stream, &item);
}

void streams_push_call(Streams *streams, int stream, uint64_t tag)
{
    Item item = {.kind = ITEM_CALL, .tag = tag};
    push(streams, stream, &item);
}

void streams_push_join(Streams *streams, int stream, int group, guint32 key, const StreamWork *work)
{
    Item item = work_item(streams, stream, ITEM_JOIN, work);
    item.ref = group;
    item.key = key;
    push(streams, stream, &item);
}

/* Lines. */
static void line_add(Streams *streams, Line *line, int idx)
{
    get(streams, idx)->next = -1;
    if (line->first < 0) {
        line->first = idx;
    } else {
        get(streams, line->last)->next = idx;
    }
    line->last = idx;
}

static void reach_token(Streams *streams, int idx)
{
    Token *token = get_token(streams, idx);
    if (token->reached_ns >= 0) {
        return;
    }
    token->reached_ns = sim_engine_now(streams->engine);
    for (int i = token->line.first; i >= 0; i = get(streams, i)->next) {
        make_ready(streams, i);
    }
    token->line = empty_line;
}

/* Takes the first item out and tells of its end. */
static void finish_item(Streams *streams, int idx, SimTime start_ns)
{
    Stream *stream = get(streams, idx);
    Item item = *item_at(stream, 0);
    SimTime now_ns = sim_engine_now(streams->engine);
    stream->head = (stream->head + 1) & (stream->capacity - 1);
    stream->n--;
    stream->busy_ns += now_ns - start_ns;
    if (streams->log != NULL && now_ns > start_ns) {
        Span span = {start_ns, now_ns, item.tag, idx};
        span_log_add(streams->log, &span);
    }
    if (streams->callbacks.done != NULL) {
        streams->callbacks.done(streams->callbacks.self, idx, item.tag, start_ns, now_ns);
    }
}

/* Takes out an item that nobody is told of. */
static void drop_item(Stream *stream)
{
    stream->head = (stream->head + 1) & (stream->capacity - 1);
    stream->n--;
}

/* Runs the first item of a stream from now on. */
static void start_work(Streams *streams, int idx)
{
    Stream *stream = get(streams, idx);
    const Item *item = item_at(stream, 0);
    stream->state = STREAM_BUSY;
    stream->start_ns = sim_engine_now(streams->engine);
    if (stream->device >= 0) {
        Share *share = g_ptr_array_index(streams->devices, (guint)stream->device);
        ShareWork work = {(int)item->cls, item->duration_ns, item->load};
        stream->place = share_start(share, &work, (uint64_t)idx);
    } else {
        sim_engine_at(streams->engine, stream->start_ns + item->duration_ns, on_work_end, streams, (uint64_t)idx);
    }
}

static void end_work(Streams *streams, int idx)
{
    Stream *stream = get(streams, idx);
    if (stream->device >= 0) {
        share_stop(g_ptr_array_index(streams->devices, (guint)stream->device), stream->place);
    }
    finish_item(streams, idx, stream->start_ns);
    make_ready(streams, idx);
}

/* The activity of a stream has ended: its item too, unless other members still run. */
static void on_work_end(void *self, uint64_t arg)
{
    Streams *streams = self;
    int idx = (int)arg;
    const Item *item = item_at(get(streams, idx), 0);
    if (item->kind == ITEM_WORK) {
        end_work(streams, idx);
        return;
    }
    Group *group = get_group(streams, item->ref);
    if (++group->n_through < group->n_members) {
        return;
    }
    int member = group->line.first;
    group->n_arrived = 0;
    group->n_through = 0;
    group->line = empty_line;
    while (member >= 0) {
        int next = get(streams, member)->next; /* the callback may let the member join again */
        end_work(streams, member);
        member = next;
    }
}

static char *describe(const Streams *streams, int idx)
{
    const Stream *stream = get(streams, idx);
    uint64_t tag = item_at(stream, 0)->tag;
    if (streams->callbacks.describe != NULL) {
        return streams->callbacks.describe(streams->callbacks.self, idx, tag);
    }
    return g_strdup_printf("item %" G_GUINT64_FORMAT, tag);
}

/* A member has come to its join; the last one starts it for all. */
static void arrive(Streams *streams, int idx)
{
    Stream *stream = get(streams, idx);
    const Item *item = item_at(stream, 0);
    Group *group = get_group(streams, item->ref);
    stream->state = STREAM_GROUP;
    if (group->n_arrived > 0 && group->key != item->key) {
        g_autofree char *first = describe(streams, group->line.first);
        g_autofree char *now = describe(streams, idx);
        sim_engine_fail(streams->engine,
                        g_error_new(MOESIM_ERROR, MOESIM_ERROR_FAILED,
                                    "members of one group do different things: \"%s\" is at %s, \"%s\" at %s",
                                    get(streams, group->line.first)->name, first, stream->name, now));
        return;
    }
    group->key = item->key;
    line_add(streams, &group->line, idx);
    if (++group->n_arrived == group->n_members) {
        for (int i = group->line.first; i >= 0; i = get(streams, i)->next) {
            start_work(streams, i);
        }
    }
}

static void on_time(void *self, uint64_t arg)
{
    make_ready(self, (int)arg);
}

/* Does a stream's first item, or lets it wait. TRUE: the next one may follow at once. */
static gboolean step(Streams *streams, int idx)
{
    Stream *stream = get(streams, idx);
    const Item *item = item_at(stream, 0);
    SimTime now_ns = sim_engine_now(streams->engine);
    if (item->not_before_ns > now_ns) {
        stream->state = STREAM_EARLY;
        sim_engine_at(streams->engine, item->not_before_ns, on_time, streams, (uint64_t)idx);
        return FALSE;
    }
    switch ((ItemKind)item->kind) {
    case ITEM_RECORD:
        reach_token(streams, item->ref);
        drop_item(stream);
        return TRUE;
    case ITEM_WAIT: {
        Token *token = get_token(streams, item->ref);
        if (token->reached_ns >= 0) {
            drop_item(stream);
            return TRUE;
        }
        stream->state = STREAM_TOKEN;
        line_add(streams, &token->line, idx);
        return FALSE;
    }
    case ITEM_CALL:
        finish_item(streams, idx, now_ns);
        return TRUE;
    case ITEM_JOIN:
        arrive(streams, idx);
        return FALSE;
    case ITEM_WORK:
        if (item->duration_ns == 0) {
            finish_item(streams, idx, now_ns);
            return TRUE;
        }
        start_work(streams, idx);
        return FALSE;
    }
    g_assert_not_reached();
}

/* Settler: lets every stream that can go on do so. The list grows meanwhile. */
static void drain(void *self, uint64_t arg)
{
    (void)arg;
    Streams *streams = self;
    for (size_t i = 0; i < streams->n_ready; i++) {
        int idx = streams->ready[i];
        gboolean goes_on = TRUE;
        while (goes_on && get(streams, idx)->n > 0) {
            goes_on = step(streams, idx);
        }
        if (goes_on) {
            get(streams, idx)->state = STREAM_IDLE;
        }
    }
    streams->n_ready = 0;
    streams->is_draining = FALSE;
}

/* The stream that has a record of the token still to do, or -1. */
static int find_record(const Streams *streams, int token)
{
    for (guint s = 0; s < streams->streams->len; s++) {
        const Stream *stream = get(streams, (int)s);
        for (guint32 i = 0; i < stream->n; i++) {
            const Item *item = item_at(stream, i);
            if (item->kind == ITEM_RECORD && item->ref == token) {
                return (int)s;
            }
        }
    }
    return -1;
}

static void report_stream(const Streams *streams, int idx, GString *text)
{
    const Stream *stream = get(streams, idx);
    const Item *item = item_at(stream, 0);
    g_string_append_printf(text, "  stream \"%s\", %u items left, ", stream->name, stream->n);
    if (stream->state == STREAM_TOKEN) {
        int recorder = find_record(streams, item->ref);
        g_string_append_printf(text, "waits for token %d, which ", item->ref);
        if (recorder >= 0) {
            g_string_append_printf(text, "stream \"%s\" has yet to record\n", get(streams, recorder)->name);
        } else {
            g_string_append(text, "no stream records\n");
        }
        return;
    }
    g_autofree char *name = describe(streams, idx);
    if (stream->state == STREAM_GROUP) {
        const Group *group = get_group(streams, item->ref);
        g_string_append_printf(text, "waits in %s for the others of group %d: %d of %d have come\n", name, item->ref,
                               group->n_arrived, group->n_members);
    } else {
        g_string_append_printf(text, "is at %s\n", name);
    }
}

static void report(void *self, GString *text)
{
    enum { REPORTED_MAX = 8 };
    const Streams *streams = self;
    guint n_blocked = 0;
    for (guint i = 0; i < streams->streams->len; i++) {
        if (get(streams, (int)i)->n > 0 && ++n_blocked <= REPORTED_MAX) {
            report_stream(streams, (int)i, text);
        }
    }
    if (n_blocked > REPORTED_MAX) {
        g_string_append_printf(text, "  and %u more streams\n", n_blocked - REPORTED_MAX);
    }
}

SimTime streams_token_ns(const Streams *streams, int token)
{
    return get_token(streams, token)->reached_ns;
}

size_t streams_n_pending(const Streams *streams, int stream)
{
    return get(streams, stream)->n;
}

SimTime streams_busy_ns(const Streams *streams, int stream)
{
    return get(streams, stream)->busy_ns;
}
