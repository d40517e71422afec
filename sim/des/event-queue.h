/*
 * Event queue: what happens next.
 *
 * A binary heap of 16-byte keys: time, then a serial number, so equal times leave in the order they came and a
 * run depends on nothing but its inputs. What an event does lies apart from its key, in a slot that the key
 * names: sifting moves four keys per cache line. There is no cancel: whoever may change its mind keeps its own
 * order and shows only its earliest time, or keeps an epoch in arg and ignores a stale call.
 *
 * Invariants: (1) keys[0] is the least; (2) popped times never decrease, and (time, order) strictly increases;
 * (3) serial numbers are never reused.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "sim/base/quantity.h"

typedef void (*EventFn)(void *self, uint64_t arg);

/* One event. */
typedef struct Event {
    SimTime time_ns;
    EventFn run;
    void *self;
    uint64_t arg;
} Event;

typedef struct EventKey {
    SimTime time_ns;
    uint64_t order; /* serial number << 24 | slot */
} EventKey;

typedef struct EventQueue EventQueue;

EventQueue *event_queue_new(void);
void event_queue_free(EventQueue *queue);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(EventQueue, event_queue_free)

/* Adds an event; it may not lie before the last one popped. */
void event_queue_push(EventQueue *queue, const Event *event);

/* Takes out the earliest event; FALSE when there is none. */
gboolean event_queue_pop(EventQueue *queue, Event *ret_event);

/* Time of the earliest event, or G_MAXINT64 when there is none. */
SimTime event_queue_next_ns(const EventQueue *queue);
size_t event_queue_length(const EventQueue *queue);
