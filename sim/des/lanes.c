#include "sim/des/lanes.h"

#include <string.h>

typedef enum ItemKind { ITEM_WORK, ITEM_WAIT, ITEM_MARK } ItemKind;

typedef struct Item {
    SimTime duration_ns;   /* WAIT: number of the point */
    SimTime not_before_ns; /* MARK: value */
    guint64 kind : 8, cls : 8, lane : 8; /* lane: of a WAIT's point */
    guint64 load : LINK_LOAD_BITS;       /* WORK */
} Item;

typedef struct Lane {
    uint64_t head, tail; /* items done, items pushed */
    Item *items;         /* ring */
    uint64_t mask;
    SimTime dry_ns; /* when its last item was done */
    gboolean is_busy;
    gint32 cls;
    int64_t remaining; /* of the running work, ns x SHARE_RATE_ONE */
    int64_t rate;
    LinkLoad load; /* of the running work; 0 when nothing runs */
} Lane;

struct Lanes {
    int n_lanes;
    const ShareLaw *law;
    int n_watches;
    LaneWatch watches[LANE_SUMS_MAX];
    SimTime now_ns;
    Lane lanes[LANES_MAX];
    guint32 busy, filled;         /* bits by lane: something runs; something is left to be done */
    guint32 running;              /* bits by class */
    int n_running[SHARE_CLASSES_MAX];
    int n_loads, n_apart;         /* running works that load links; of classes kept apart */
    gboolean rates_are_old, is_crowded;
    LaneSums sums;
    uint64_t n_events;
    GArray *marks; /* LaneMark */
};

Lanes *lanes_new(int n_lanes, const LaneWatch *watches, int n_watches)
{
    enum { CAPACITY = 64 };
    g_assert(n_lanes > 0 && n_lanes <= LANES_MAX && n_watches <= LANE_SUMS_MAX);
    Lanes *lanes = g_new0(Lanes, 1);
    lanes->n_lanes = n_lanes;
    lanes->n_watches = n_watches;
    memcpy(lanes->watches, watches, sizeof *watches * (size_t)n_watches);
    lanes->marks = g_array_new(FALSE, FALSE, sizeof(LaneMark));
    for (int i = 0; i < n_lanes; i++) {
        lanes->lanes[i].items = g_new(Item, CAPACITY);
        lanes->lanes[i].mask = CAPACITY - 1;
    }
    return lanes;
}

void lanes_free(Lanes *lanes)
{
    if (lanes == NULL) {
        return;
    }
    for (int i = 0; i < lanes->n_lanes; i++) {
        g_free(lanes->lanes[i].items);
    }
    g_array_unref(lanes->marks);
    g_free(lanes);
}

void lanes_reset(Lanes *lanes, const ShareLaw *law)
{
    lanes->law = law;
    lanes->now_ns = 0;
    lanes->sums = (LaneSums){{0}};
    lanes->busy = lanes->filled = lanes->running = 0;
    lanes->n_loads = lanes->n_apart = 0;
    lanes->rates_are_old = lanes->is_crowded = FALSE;
    memset(lanes->n_running, 0, sizeof lanes->n_running);
    g_array_set_size(lanes->marks, 0);
    for (int i = 0; i < lanes->n_lanes; i++) {
        lanes->lanes[i].head = lanes->lanes[i].tail = 0;
        lanes->lanes[i].dry_ns = 0;
        lanes->lanes[i].is_busy = FALSE;
        lanes->lanes[i].load = 0;
    }
}

SimTime lanes_now(const Lanes *lanes)
{
    return lanes->now_ns;
}

/* Takes the lowest of some bits; they are not 0. */
static inline int take_bit(guint32 *bits)
{
    int bit = __builtin_ctz(*bits);
    *bits &= *bits - 1;
    return bit;
}

/* The first item of a lane is done. */
static inline void finish_item(Lanes *lanes, int idx)
{
    Lane *lane = &lanes->lanes[idx];
    if (++lane->head == lane->tail) {
        lanes->filled &= ~(1u << idx);
    }
    lane->dry_ns = lanes->now_ns;
}

static inline Item *item_at(const Lane *lane, uint64_t i)
{
    return &lane->items[i & lane->mask];
}

static void grow(Lane *lane)
{
    uint64_t mask = 2 * lane->mask + 1;
    Item *items = g_new(Item, mask + 1);
    for (uint64_t i = lane->head; i < lane->tail; i++) {
        items[i & mask] = *item_at(lane, i);
    }
    g_free(lane->items);
    lane->items = items;
    lane->mask = mask;
}

static inline Item *push(Lanes *lanes, int idx)
{
    g_assert(idx >= 0 && idx < lanes->n_lanes);
    Lane *lane = &lanes->lanes[idx];
    if (lane->tail - lane->head > lane->mask) {
        grow(lane);
    }
    lanes->filled |= 1u << idx;
    return item_at(lane, lane->tail++);
}

void lanes_push_work(Lanes *lanes, int lane, const ShareWork *work, SimTime not_before_ns)
{
    g_assert(work->duration_ns >= 0 && work->duration_ns < G_MAXINT64 / SHARE_RATE_ONE);
    g_assert(work->cls >= 0 && work->cls < SHARE_CLASSES_MAX);
    *push(lanes, lane) = (Item){work->duration_ns, not_before_ns, ITEM_WORK, (guint8)work->cls, 0, work->load & LINK_LOAD_MASK};
}

void lanes_push_wait(Lanes *lanes, int lane, LanePoint point)
{
    *push(lanes, lane) = (Item){(SimTime)point.n, 0, ITEM_WAIT, 0, (guint8)point.lane, 0};
}

void lanes_push_mark(Lanes *lanes, int lane, guint32 value)
{
    *push(lanes, lane) = (Item){0, (SimTime)value, ITEM_MARK, 0, 0, 0};
}

LanePoint lanes_point(const Lanes *lanes, int lane)
{
    return (LanePoint){lane, lanes->lanes[lane].tail};
}

gboolean lanes_is_idle(const Lanes *lanes, int idx)
{
    const Lane *lane = &lanes->lanes[idx];
    return lane->head == lane->tail && lane->dry_ns < lanes->now_ns;
}

gboolean lanes_reached(const Lanes *lanes, LanePoint point)
{
    return lanes->lanes[point.lane].head >= point.n;
}

static void start_work(Lanes *lanes, int idx, const Item *item)
{
    Lane *lane = &lanes->lanes[idx];
    lane->is_busy = TRUE;
    lane->cls = (gint32)item->cls;
    lane->load = item->load;
    lanes->n_loads += item->load != 0;
    lanes->n_apart += share_law_is_apart(lanes->law, lane->cls);
    lane->remaining = item->duration_ns * SHARE_RATE_ONE;
    lanes->busy |= 1u << idx;
    lanes->running |= 1u << item->cls;
    lanes->n_running[item->cls]++;
    lanes->rates_are_old = TRUE;
    lanes->n_events++;
}

static void end_work(Lanes *lanes, int idx)
{
    Lane *lane = &lanes->lanes[idx];
    lane->is_busy = FALSE;
    lanes->n_loads -= lane->load != 0;
    lanes->n_apart -= share_law_is_apart(lanes->law, lane->cls);
    lane->load = 0;
    finish_item(lanes, idx);
    lanes->busy &= ~(1u << idx);
    if (--lanes->n_running[lane->cls] == 0) {
        lanes->running &= ~(1u << lane->cls);
    }
    lanes->rates_are_old = TRUE;
}

static void note_mark(Lanes *lanes, guint32 value)
{
    LaneMark mark = {value, lanes->now_ns, lanes->sums};
    g_array_append_val(lanes->marks, mark);
}

/* Does what a lane can do without time passing. Returns when it could go on by itself; G_MAXINT64: when others have. */
static SimTime go_on(Lanes *lanes, int idx, gboolean *ret_moved)
{
    Lane *lane = &lanes->lanes[idx];
    while (lane->head < lane->tail) {
        const Item *item = item_at(lane, lane->head);
        if (item->kind == ITEM_WAIT) {
            if (lanes->lanes[item->lane].head < (uint64_t)item->duration_ns) {
                return G_MAXINT64;
            }
        } else if (item->kind == ITEM_MARK) {
            note_mark(lanes, (guint32)item->not_before_ns);
        } else if (item->not_before_ns > lanes->now_ns) {
            return item->not_before_ns;
        } else if (item->duration_ns > 0) {
            start_work(lanes, idx, item);
            return G_MAXINT64;
        }
        finish_item(lanes, idx);
        *ret_moved = TRUE;
    }
    return G_MAXINT64;
}

/* Lets every lane do what it can at this time; returns when one could go on by itself. */
static SimTime settle_lanes(Lanes *lanes)
{
    SimTime next_ns;
    gboolean moved;
    do {
        moved = FALSE;
        next_ns = G_MAXINT64;
        for (guint32 idle = lanes->filled & ~lanes->busy; idle != 0;) {
            SimTime ns = go_on(lanes, take_bit(&idle), &moved);
            next_ns = MIN(next_ns, ns);
        }
    } while (moved);
    return next_ns;
}

/* Paces of those that load links, where there are several. */
static void settle_paces(Lanes *lanes)
{
    LinkLoad loads[LANES_MAX];
    guint32 paces[LANES_MAX];
    for (int i = 0; i < lanes->n_lanes; i++) {
        loads[i] = lanes->lanes[i].load;
    }
    link_load_paces(loads, lanes->n_lanes, paces);
    for (int i = 0; i < lanes->n_lanes; i++) {
        Lane *lane = &lanes->lanes[i];
        if (lane->load != 0) {
            lanes->is_crowded |= paces[i] < LINK_PACE_ONE;
            lane->rate = share_paced((guint32)lane->rate, paces[i]);
        }
    }
}

static void settle_rates(Lanes *lanes)
{
    guint32 running = share_law_running(lanes->law, lanes->running, lanes->n_apart);
    for (guint32 busy = lanes->busy; busy != 0;) {
        Lane *lane = &lanes->lanes[take_bit(&busy)];
        lane->rate = share_law_rate(lanes->law, running, lane->cls, lanes->n_running[lane->cls]);
    }
    lanes->rates_are_old = lanes->is_crowded = FALSE;
    if (lanes->n_loads > 1) {
        settle_paces(lanes);
    }
}

static SimTime next_end_ns(const Lanes *lanes)
{
    SimTime least_ns = G_MAXINT64;
    for (guint32 busy = lanes->busy; busy != 0;) {
        const Lane *lane = &lanes->lanes[take_bit(&busy)];
        int64_t whole = lane->rate == SHARE_RATE_ONE ? (lane->remaining + SHARE_RATE_ONE - 1) / SHARE_RATE_ONE
                                                     : quantity_div_up(lane->remaining, lane->rate);
        least_ns = MIN(least_ns, lanes->now_ns + whole);
    }
    return least_ns;
}

static void advance(Lanes *lanes, SimTime to_ns)
{
    SimTime passed_ns = to_ns - lanes->now_ns;
    lanes->now_ns = to_ns;
    for (int w = 0; w < lanes->n_watches; w++) {
        const LaneWatch *watch = &lanes->watches[w];
        gboolean counts = watch->crowded    ? lanes->is_crowded
                          : watch->busy == 0 ? lanes->busy == 0
                                             : (lanes->busy & watch->busy) != 0 && (lanes->busy & watch->hiding) == 0;
        lanes->sums.ns[w] += counts ? passed_ns : 0;
    }
    for (guint32 busy = lanes->busy; busy != 0;) {
        int i = take_bit(&busy);
        Lane *lane = &lanes->lanes[i];
        lane->remaining = MAX(0, lane->remaining - passed_ns * lane->rate);
        if (lane->remaining == 0) {
            end_work(lanes, i);
        }
    }
}

gboolean lanes_run(Lanes *lanes, const LanePoint *point)
{
    for (;;) {
        SimTime next_ns = settle_lanes(lanes);
        if (point != NULL && lanes_reached(lanes, *point)) {
            return TRUE;
        }
        if (lanes->rates_are_old) {
            settle_rates(lanes);
        }
        next_ns = MIN(next_ns, next_end_ns(lanes));
        if (next_ns == G_MAXINT64) {
            return point == NULL && lanes_n_pending(lanes) == 0;
        }
        advance(lanes, next_ns);
    }
}

size_t lanes_n_pending(const Lanes *lanes)
{
    size_t n = 0;
    for (int i = 0; i < lanes->n_lanes; i++) {
        n += lanes->lanes[i].tail - lanes->lanes[i].head;
    }
    return n;
}

const LaneSums *lanes_sums(const Lanes *lanes)
{
    return &lanes->sums;
}

const LaneMark *lanes_marks(const Lanes *lanes, guint *ret_n)
{
    *ret_n = lanes->marks->len;
    return (const LaneMark *)(const void *)lanes->marks->data;
}

void lanes_clear_marks(Lanes *lanes)
{
    g_array_set_size(lanes->marks, 0);
}

uint64_t lanes_n_events(const Lanes *lanes)
{
    return lanes->n_events;
}

LanePoint lanes_relative(const Lanes *lanes, LanePoint point)
{
    uint64_t head = lanes->lanes[point.lane].head;
    return (LanePoint){point.lane, point.n > head ? point.n - head : 0};
}

/* Three words per item; a time that has come counts as now, a wait that is over as none. */
static void store_item(const Lanes *lanes, const Item *item, int64_t *ret_words)
{
    int64_t what = (int64_t)((guint64)item->load << 24 | (guint64)item->kind << 16 | (guint64)item->cls << 8 | item->lane);
    if (item->kind == ITEM_WAIT) {
        uint64_t left = lanes_relative(lanes, (LanePoint){item->lane, (uint64_t)item->duration_ns}).n;
        ret_words[0] = left > 0 ? what : (int64_t)ITEM_WAIT << 16;
        ret_words[1] = (int64_t)left;
        ret_words[2] = 0;
        return;
    }
    ret_words[0] = what;
    ret_words[1] = item->duration_ns;
    ret_words[2] = item->kind == ITEM_MARK ? item->not_before_ns : MAX(item->not_before_ns - lanes->now_ns, 0);
}

enum { ITEM_WORDS = 3, LANE_WORDS = 2 };

void lanes_store(const Lanes *lanes, GArray *words)
{
    for (int i = 0; i < lanes->n_lanes; i++) {
        const Lane *lane = &lanes->lanes[i];
        guint at = words->len, n = (guint)(lane->tail - lane->head);
        g_array_set_size(words, at + LANE_WORDS + n * ITEM_WORDS);
        int64_t *to = &g_array_index(words, int64_t, at);
        to[0] = (int64_t)n;
        to[1] = lane->is_busy ? lane->remaining : n == 0 && lane->dry_ns == lanes->now_ns ? -2 : -1; /* -2: just done */
        for (guint k = 0; k < n; k++) {
            store_item(lanes, item_at(lane, lane->head + k), to + LANE_WORDS + k * ITEM_WORDS);
        }
    }
}

size_t lanes_load(Lanes *lanes, const int64_t *words, SimTime now_ns)
{
    const int64_t *at = words;
    lanes_reset(lanes, lanes->law);
    lanes->now_ns = now_ns;
    for (int i = 0; i < lanes->n_lanes; i++) {
        Lane *lane = &lanes->lanes[i];
        int64_t n = at[0], remaining = at[1];
        lane->dry_ns = remaining == -2 ? now_ns : now_ns - 1;
        at += LANE_WORDS;
        for (int64_t k = 0; k < n; k++, at += ITEM_WORDS) {
            ItemKind kind = (ItemKind)(guint8)(at[0] >> 16);
            LinkLoad load = (guint64)at[0] >> 24;
            SimTime time_ns = kind == ITEM_WORK ? at[2] + now_ns : at[2];
            *push(lanes, i) = (Item){at[1], time_ns, (guint8)kind, (guint8)(at[0] >> 8), (guint8)at[0], load & LINK_LOAD_MASK};
        }
        if (remaining >= 0) {
            start_work(lanes, i, item_at(lane, 0));
            lane->remaining = remaining;
            lanes->n_events--;
        }
    }
    return (size_t)(at - words);
}
