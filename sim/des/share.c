#include "sim/des/share.h"

#include <math.h>

enum { PLACES_MAX = 32 };

struct ShareLaw {
    int n_classes;
    guint32 *rates; /* [set of classes][class] in 65536ths */
};

typedef struct Activity {
    int cls; /* -1: the place is free */
    gboolean ended;
    guint32 rate;
    int64_t remaining; /* ns x 65536 */
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
    law->rates = g_new0(guint32, (size_t)n_classes << n_classes);
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

guint32 share_law_rate(const ShareLaw *law, guint32 running, int cls, int n)
{
    return MAX(1, law->rates[running * (guint32)law->n_classes + (guint32)cls] / (guint32)n);
}

const guint32 *share_law_numbers(const ShareLaw *law, size_t *ret_n)
{
    *ret_n = (size_t)law->n_classes << law->n_classes;
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
            share->done(share->self, activity->arg);
        }
    }
}

/* After all changes of a time: new rates, and the earliest end if it moved. */
static void on_settle(void *self, uint64_t arg)
{
    (void)arg;
    Share *share = self;
    const guint32 *rates = &share->law->rates[share->running * (guint32)share->law->n_classes];
    share->is_dirty = FALSE;
    settle_work(share);
    SimTime next_ns = G_MAXINT64;
    for (int i = 0; i < share->n_places; i++) {
        Activity *activity = &share->places[i];
        if (activity->cls < 0 || activity->ended) {
            continue;
        }
        activity->rate = MAX(1, rates[activity->cls] / (guint32)share->n_active[activity->cls]);
        next_ns = MIN(next_ns, share->since_ns + quantity_div_up(activity->remaining, activity->rate));
    }
    if (next_ns != share->next_ns) {
        share->next_ns = next_ns;
        share->epoch++;
        if (next_ns < G_MAXINT64) {
            sim_engine_at(share->engine, next_ns, on_end, share, share->epoch);
        }
    }
}

int share_start(Share *share, int cls, SimTime duration_ns, uint64_t arg)
{
    g_assert(cls >= 0 && cls < share->law->n_classes);
    g_assert(duration_ns >= 0 && duration_ns < G_MAXINT64 / SHARE_RATE_ONE);
    int place = 0;
    while (place < PLACES_MAX && share->places[place].cls >= 0) {
        place++;
    }
    g_assert(place < PLACES_MAX);
    touch(share);
    share->places[place] = (Activity){.cls = cls, .remaining = duration_ns * SHARE_RATE_ONE, .arg = arg};
    share->n_places = MAX(share->n_places, place + 1);
    share->n_held[cls]++;
    share->n_active[cls]++;
    share->running |= 1u << cls;
    return place;
}

void share_stop(Share *share, int place)
{
    Activity *activity = &share->places[place];
    g_assert(activity->cls >= 0);
    touch(share);
    share->n_held[activity->cls]--;
    share->n_active[activity->cls] -= activity->ended ? 0 : 1;
    if (share->n_held[activity->cls] == 0) {
        share->running &= ~(1u << activity->cls);
    }
    activity->cls = -1;
    while (share->n_places > 0 && share->places[share->n_places - 1].cls < 0) {
        share->n_places--;
    }
}
