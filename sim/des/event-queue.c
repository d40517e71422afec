#include "sim/des/event-queue.h"

enum { SLOT_BITS = 24 };

/* What an event does; while the slot is free, arg is the next free one. */
typedef struct Payload {
    EventFn run;
    void *self;
    uint64_t arg;
} Payload;

struct EventQueue {
    EventKey *keys;
    Payload *payloads;
    size_t n, n_slots, capacity; /* n_slots: slots ever used */
    uint64_t free_slot;          /* 1 + the first free one; 0 = none */
    uint64_t serial;
    EventKey last; /* popped */
};

EventQueue *event_queue_new(void)
{
    EventQueue *queue = g_new0(EventQueue, 1);
    queue->last.time_ns = G_MININT64;
    return queue;
}

void event_queue_free(EventQueue *queue)
{
    if (queue == NULL) {
        return;
    }
    g_free(queue->keys);
    g_free(queue->payloads);
    g_free(queue);
}

static inline gboolean is_before(EventKey a, EventKey b)
{
    return a.time_ns < b.time_ns || (a.time_ns == b.time_ns && a.order < b.order);
}

/* A slot for one more event. Slots and keys grow together: there are never more of one than of the other. */
static uint64_t take_slot(EventQueue *queue)
{
    if (queue->free_slot != 0) {
        uint64_t slot = queue->free_slot - 1;
        queue->free_slot = queue->payloads[slot].arg;
        return slot;
    }
    if (queue->n_slots == queue->capacity) {
        queue->capacity = MAX(64, 2 * queue->capacity);
        queue->keys = g_renew(EventKey, queue->keys, queue->capacity);
        queue->payloads = g_renew(Payload, queue->payloads, queue->capacity);
    }
    g_assert(queue->n_slots < (size_t)1 << SLOT_BITS);
    return queue->n_slots++;
}

void event_queue_push(EventQueue *queue, const Event *event)
{
    g_assert(event->time_ns >= queue->last.time_ns);
    uint64_t slot = take_slot(queue);
    queue->payloads[slot] = (Payload){event->run, event->self, event->arg};
    g_assert(queue->serial < (uint64_t)1 << (64 - SLOT_BITS));
    EventKey key = {event->time_ns, queue->serial++ << SLOT_BITS | slot};
    size_t i = queue->n++;
    while (i > 0 && is_before(key, queue->keys[(i - 1) / 2])) {
        queue->keys[i] = queue->keys[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    queue->keys[i] = key;
}

/* Puts key where the root was and lets it sink. */
static void sink(EventQueue *queue, EventKey key)
{
    EventKey *keys = queue->keys;
    size_t i = 0, n = queue->n;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n) {
            break;
        }
        if (child + 1 < n && is_before(keys[child + 1], keys[child])) {
            child++;
        }
        if (!is_before(keys[child], key)) {
            break;
        }
        keys[i] = keys[child];
        i = child;
    }
    keys[i] = key;
}

gboolean event_queue_pop(EventQueue *queue, Event *ret_event)
{
    if (queue->n == 0) {
        return FALSE;
    }
    EventKey key = queue->keys[0];
    g_assert(is_before(queue->last, key));
    queue->last = key;
    uint64_t slot = key.order & (((uint64_t)1 << SLOT_BITS) - 1);
    Payload *payload = &queue->payloads[slot];
    *ret_event = (Event){key.time_ns, payload->run, payload->self, payload->arg};
    payload->arg = queue->free_slot;
    queue->free_slot = slot + 1;
    queue->n--;
    if (queue->n > 0) {
        sink(queue, queue->keys[queue->n]);
    }
    return TRUE;
}

SimTime event_queue_next_ns(const EventQueue *queue)
{
    return queue->n > 0 ? queue->keys[0].time_ns : G_MAXINT64;
}

size_t event_queue_length(const EventQueue *queue)
{
    return queue->n;
}
