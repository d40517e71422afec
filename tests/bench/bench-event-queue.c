/* Hold model: take the earliest event, push it again later; 4,096 pending, four distinct durations. */
#include "tests/bench/bench.h"

#include "sim/base/rng.h"
#include "sim/des/event-queue.h"

static void ignore(void *self, uint64_t arg)
{
    (void)self;
    (void)arg;
}

int main(void)
{
    enum { N_PENDING = 4096, N_HOLDS = 8000000, N_DRAWS = 1 << 16 };
    static const SimTime durations_ns[] = {700, 1100, 5300, 20011};
    EventQueue *queue = event_queue_new();
    SimTime *steps_ns = g_new(SimTime, N_DRAWS); /* drawn beforehand: the queue alone is timed */
    for (uint64_t i = 0; i < N_DRAWS; i++) {
        steps_ns[i] = durations_ns[rng_below(1, RNG_TEST, i, 4)];
    }
    for (int i = 0; i < N_PENDING; i++) {
        Event event = {steps_ns[i], ignore, NULL, 0};
        event_queue_push(queue, &event);
    }
    double start_s = bench_cpu_s();
    for (int i = 0; i < N_HOLDS; i++) {
        Event event;
        event_queue_pop(queue, &event);
        event.time_ns += steps_ns[i % N_DRAWS];
        event_queue_push(queue, &event);
    }
    bench_print("event queue, holds", N_HOLDS, bench_cpu_s() - start_s, 6e6);
    g_free(steps_ns);
    event_queue_free(queue);
    return 0;
}
