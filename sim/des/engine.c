#include "sim/des/engine.h"

#include "sim/base/error.h"

typedef struct Settler {
    EventFn settle;
    void *self;
    uint64_t arg;
} Settler;

typedef struct Watcher {
    SimReport report;
    void *self;
} Watcher;

struct SimEngine {
    SimTime now_ns;
    EventQueue *queue;
    Settler *settlers; /* first come, first called; not a GArray: one is added for most events */
    size_t n_settlers, n_settlers_max;
    GArray *watchers; /* Watcher */
    GError *failure;
    uint64_t n_events;
};

SimEngine *sim_engine_new(void)
{
    SimEngine *engine = g_new0(SimEngine, 1);
    engine->queue = event_queue_new();
    engine->watchers = g_array_new(FALSE, FALSE, sizeof(Watcher));
    return engine;
}

void sim_engine_free(SimEngine *engine)
{
    if (engine == NULL) {
        return;
    }
    event_queue_free(engine->queue);
    g_free(engine->settlers);
    g_array_unref(engine->watchers);
    g_clear_error(&engine->failure);
    g_free(engine);
}

SimTime sim_engine_now(const SimEngine *engine)
{
    return engine->now_ns;
}

void sim_engine_at(SimEngine *engine, SimTime time_ns, EventFn run, void *self, uint64_t arg)
{
    g_assert(time_ns >= engine->now_ns);
    Event event = {time_ns, run, self, arg};
    event_queue_push(engine->queue, &event);
}

void sim_engine_settle(SimEngine *engine, EventFn settle, void *self, uint64_t arg)
{
    if (engine->n_settlers == engine->n_settlers_max) {
        engine->n_settlers_max = MAX(64, 2 * engine->n_settlers_max);
        engine->settlers = g_renew(Settler, engine->settlers, engine->n_settlers_max);
    }
    engine->settlers[engine->n_settlers++] = (Settler){settle, self, arg};
}

void sim_engine_watch(SimEngine *engine, SimReport report, void *self)
{
    Watcher watcher = {report, self};
    g_array_append_val(engine->watchers, watcher);
}

void sim_engine_fail(SimEngine *engine, GError *error)
{
    if (engine->failure == NULL) {
        engine->failure = error;
    } else {
        g_error_free(error);
    }
}

/* The array may grow while it is walked, and its memory move: each entry is copied out first. */
static void settle_all(SimEngine *engine)
{
    for (size_t i = 0; i < engine->n_settlers; i++) {
        Settler settler = engine->settlers[i];
        settler.settle(settler.self, settler.arg);
    }
    engine->n_settlers = 0;
}

static gboolean check_done(SimEngine *engine, GError **error)
{
    GString *report = g_string_new(NULL);
    for (guint i = 0; i < engine->watchers->len; i++) {
        Watcher *watcher = &g_array_index(engine->watchers, Watcher, i);
        watcher->report(watcher->self, report);
    }
    gboolean done = report->len == 0;
    if (!done) {
        g_autofree char *now = quantity_format_time(engine->now_ns);
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "deadlock: nothing is left to happen at %s, but\n%s", now,
                    report->str);
    }
    g_string_free(report, TRUE);
    return done;
}

gboolean sim_engine_run(SimEngine *engine, GError **error)
{
    settle_all(engine);
    SimTime time_ns;
    while (engine->failure == NULL && (time_ns = event_queue_next_ns(engine->queue)) < G_MAXINT64) {
        engine->now_ns = time_ns;
        while (event_queue_next_ns(engine->queue) == time_ns) {
            Event event;
            event_queue_pop(engine->queue, &event);
            event.run(event.self, event.arg);
            engine->n_events++;
        }
        settle_all(engine);
    }
    if (engine->failure != NULL) {
        g_propagate_error(error, g_steal_pointer(&engine->failure));
        return FALSE;
    }
    return check_done(engine, error);
}

uint64_t sim_engine_n_events(const SimEngine *engine)
{
    return engine->n_events;
}
