#include "sim/des/share.h"

#include <math.h>

enum { PLACES_MAX = 32 };

struct ShareLaw {
    int n_classes;
    guint32 *rates; /* [set of classes][class] in 65536ths; behind them, the classes kept apart */
    guint32 apart, several; /* bits */
};

typedef struct Activity {
    int cls; /* -1: the place is free */
    gboolean ended;
    guint32 rate;
    int64_t remaining; /* ns x 65536 */
    LinkLoad load;
    uint64_t arg;
} Activity;

struct Share {
    SimEngine *engine;
    const ShareLaw *law;
    EventFn done;
    void *self;
    int n_places;                    /* places ever used */
    int n_held[SHARE_CLASSES_MAX];   /* activities of each class */
    int n_active[SHARE_CLASSES_MAX]; /* … that have not ended: they divide the class's rate */
    guint32 running;                 /* classes with n_held > 0 */
    int n_apart;                     /* activities of classes kept apart */
    int n_loads;                     /* activities that load links and have not ended */
    SpanLog *crowded_log;            /* or NULL */
    int crowded_lane;
    SimTime crowded_ns;              /* since when links slow activities down; -1: they do not */
    gboolean is_dirty;
    SimTime since_ns; /* up to when remaining is settled */
    SimTime next_ns;  /* of the valid event */
    uint64_t epoch;
    Activity places[PLACES_MAX];
};

ShareLaw *share_law_new(int n_classes, ShareRate rate, const void *data)
{
    g_assert(n_classes > 0 && n_classes <= SHARE_CLASSES_MAX);
    ShareLaw *law = g_new0(ShareLaw, 1);
    law->n_classes = n_classes;
    law->rates = g_new0(guint32, ((size_t)n_classes << n_classes) + 1);
    for (guint32 set = 1; set < 1u << n_classes; set++) {
        for (int cls = 0; cls < n_classes; cls++) {
            if (set >> cls & 1) {
                double parts = floor(rate(data, set, cls) * SHARE_RATE_ONE + 0.5);
                law->rates[set * (guint32)n_classes + (guint32)cls] = (guint32)CLAMP(parts, 1, SHARE_RATE_ONE);
            }
        }
    }
    return law;
}

void share_law_keep_apart(ShareLaw *law, guint32 classes, int several)
{
    g_assert(several < law->n_classes && !(classes >> several & 1u));
    law->apart = classes;
    law->several = 1u << several;
    law->rates[(size_t)law->n_classes << law->n_classes] = classes | law->several << SHARE_CLASSES_MAX;
}

guint32 share_law_running(const ShareLaw *law, guint32 running, int n_apart)
{
    return n_apart > 1 ? running | law->several : running;
}

gboolean share_law_is_apart(const ShareLaw *law, int cls)
{
    return law->apart >> cls & 1u;
}

guint32 share_law_rate(const ShareLaw *law, guint32 running, int cls, int n)
{
    guint32 rate = law->rates[running * (guint32)law->n_classes + (guint32)cls];
    return law->apart >> cls & 1u ? rate : MAX(1, rate / (guint32)n);
}

const guint32 *share_law_numbers(const ShareLaw *law, size_t *ret_n)
{
    *ret_n = ((size_t)law->n_classes << law->n_classes) + 1;
    return law->rates;
}

void share_law_free(ShareLaw *law)
{
    if (law == NULL) {
        return;
    }
    g_free(law->rates);
    g_free(law);
}

Share *share_new(SimEngine *engine, const ShareLaw *law, EventFn done, void *self)
{
    Share *share = g_new0(Share, 1);
    share->engine = engine;
    share->law = law;
    share->done = done;
    share->self = self;
    share->next_ns = G_MAXINT64;
    share->crowded_ns = -1;
    for (int i = 0; i < PLACES_MAX; i++) {
        share->places[i].cls = -1;
    }
    return share;
}

void share_free(Share *share)
{
    g_free(share);
}

/* Brings what remains up to date: the rates since since_ns were constant. */
static void settle_work(Share *share)
{
    SimTime now_ns = sim_engine_now(share->engine);
    SimTime passed_ns = now_ns - share->since_ns;
    share->since_ns = now_ns;
    if (passed_ns == 0) {
        return;
    }
    for (int i = 0; i < share->n_places; i++) {
        Activity *activity = &share->places[i];
        if (activity->cls >= 0 && !activity->ended) {
            activity->remaining = MAX(0, activity->remaining - passed_ns * (int64_t)activity->rate);
        }
    }
}

static void on_settle(void *self, uint64_t arg);

/* Settles what ran so far before the set changes, and asks for new rates. */
static void touch(Share *share)
{
    settle_work(share);
    if (!share->is_dirty) {
        share->is_dirty = TRUE;
        sim_engine_settle(share->engine, on_settle, share, 0);
    }
}

/* The valid event: ends what is through. */
static void on_end(void *self, uint64_t epoch)
{
    Share *share = self;
    if (epoch != share->epoch) {
        return;
    }
    share->next_ns = G_MAXINT64;
    touch(share);
    for (int i = 0; i < share->n_places; i++) {
        Activity *activity = &share->places[i];
        if (activity->cls >= 0 && !activity->ended && activity->remaining == 0) {
            activity->ended = TRUE;
            share->n_active[activity->cls]--;
            share->n_loads -= activity->load != 0;
            share->done(share->self, activity->arg);
        }
    }
}

/* Paces of those that load links, where there are several. Returns whether any is less than 1. */
static gboolean settle_paces(Share *share)
{
    LinkLoad loads[PLACES_MAX];
    guint32 paces[PLACES_MAX];
    int n = 0;
    gboolean crowded = FALSE;
    for (int i = 0; i < share->n_places; i++) {
        const Activity *activity = &share->places[i];
        if (activity->cls >= 0 && !activity->ended && activity->load != 0) {
            loads[n++] = activity->load;
        }
    }
    link_load_paces(loads, n, paces);
    for (int i = 0, k = 0; i < share->n_places; i++) {
        Activity *activity = &share->places[i];
        if (activity->cls >= 0 && !activity->ended && activity->load != 0) {
            crowded |= paces[k] < LINK_PACE_ONE;
            activity->rate = share_paced(activity->rate, paces[k++]);
        }
    }
    return crowded;
}

static void note_crowded(Share *share, gboolean crowded)
{
    if (share->crowded_log != NULL && !crowded && share->crowded_ns >= 0 && share->since_ns > share->crowded_ns) {
        Span span = {share->crowded_ns, share->since_ns, 0, share->crowded_lane};
        span_log_add(share->crowded_log, &span);
    }
    share->crowded_ns = !crowded ? -1 : share->crowded_ns < 0 ? share->since_ns : share->crowded_ns;
}

/* After all changes of a time: new rates, and the earliest end if it moved. */
static void on_settle(void *self, uint64_t arg)
{
    (void)arg;
    Share *share = self;
    share->is_dirty = FALSE;
    settle_work(share);
    SimTime next_ns = G_MAXINT64;
    guint32 running = share_law_running(share->law, share->running, share->n_apart);
    for (int i = 0; i < share->n_places; i++) {
        Activity *activity = &share->places[i];
        if (activity->cls < 0 || activity->ended) {
            continue;
        }
        activity->rate = share_law_rate(share->law, running, activity->cls, share->n_active[activity->cls]);
    }
    note_crowded(share, share->n_loads > 1 && settle_paces(share));
    for (int i = 0; i < share->n_places; i++) {
        const Activity *activity = &share->places[i];
        if (activity->cls >= 0 && !activity->ended) {
            next_ns = MIN(next_ns, share->since_ns + quantity_div_up(activity->remaining, activity->rate));
        }
    }
    if (next_ns != share->next_ns) {
        share->next_ns = next_ns;
        share->epoch++;
        if (next_ns < G_MAXINT64) {
            sim_engine_at(share->engine, next_ns, on_end, share, share->epoch);
        }
    }
}

void share_log_crowded(Share *share, SpanLog *log, int lane)
{
    share->crowded_log = log;
    share->crowded_lane = lane;
}

int share_start(Share *share, const ShareWork *work, uint64_t arg)
{
    int cls = work->cls;
    g_assert(cls >= 0 && cls < share->law->n_classes);
    g_assert(work->duration_ns >= 0 && work->duration_ns < G_MAXINT64 / SHARE_RATE_ONE);
    int place = 0;
    while (place < PLACES_MAX && share->places[place].cls >= 0) {
        place++;
    }
    g_assert(place < PLACES_MAX);
    touch(share);
    share->places[place] = (Activity){.cls = cls, .remaining = work->duration_ns * SHARE_RATE_ONE, .load = work->load, .arg = arg};
    share->n_places = MAX(share->n_places, place + 1);
    share->n_held[cls]++;
    share->n_apart += share_law_is_apart(share->law, cls);
    share->n_active[cls]++;
    share->n_loads += work->load != 0;
    share->running |= 1u << cls;
    return place;
}

void share_stop(Share *share, int place)
{
    Activity *activity = &share->places[place];
    g_assert(activity->cls >= 0);
    touch(share);
    share->n_held[activity->cls]--;
    share->n_apart -= share_law_is_apart(share->law, activity->cls);
    share->n_active[activity->cls] -= activity->ended ? 0 : 1;
    share->n_loads -= !activity->ended && activity->load != 0;
    if (share->n_held[activity->cls] == 0) {
        share->running &= ~(1u << activity->cls);
    }
    activity->cls = -1;
    while (share->n_places > 0 && share->places[share->n_places - 1].cls < 0) {
        share->n_places--;
    }
}
