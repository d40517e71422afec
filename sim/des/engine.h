/*
 * Engine: the clock and the loop of one run.
 *
 * At each time: every event of that time runs, in order; then every settler that asked for it runs once. So
 * whatever shares something (a device, links) sees all changes of a time together and solves once. Settlers
 * may add events, of this time too; then the loop goes round again without the clock moving.
 *
 * No globals: a run hangs on one SimEngine, and several may run in threads of their own.
 */
#pragma once

#include <glib.h>

#include "sim/des/event-queue.h"

typedef struct SimEngine SimEngine;

/* Appends to report, a line each, what still waits; nothing when all is done. */
typedef void (*SimReport)(void *self, GString *report);

SimEngine *sim_engine_new(void);
void sim_engine_free(SimEngine *engine);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SimEngine, sim_engine_free)

/* The clock: 0 at the start. */
SimTime sim_engine_now(const SimEngine *engine);

/* Calls run(self, arg) at time_ns, not before now. Equal times: in the order of these calls. */
void sim_engine_at(SimEngine *engine, SimTime time_ns, EventFn run, void *self, uint64_t arg);

/* Calls settle(self, arg) after the events of this time. Asking twice gives two calls. */
void sim_engine_settle(SimEngine *engine, EventFn settle, void *self, uint64_t arg);

/* Asks this reporter, when nothing is left to happen, whether anything still waits. */
void sim_engine_watch(SimEngine *engine, SimReport report, void *self);

/* Makes the run end with that error (taken); the first one stays. */
void sim_engine_fail(SimEngine *engine, GError *error);

/*
 * Runs until nothing is left. FALSE when the run failed, or with MOESIM_ERROR_FAILED and the watchers' report
 * when something still waits (a deadlock).
 */
gboolean sim_engine_run(SimEngine *engine, GError **error);

/* Events run so far. */
uint64_t sim_engine_n_events(const SimEngine *engine);
