/*
 * One program, 1,024 cursors: each does compute, record, compute, a wait on its other stream, and a join of
 * its group of 64, over and over, on a device where communication slows computation.
 */
#include "tests/bench/bench.h"

#include "sim/base/rng.h"
#include "sim/des/stream.h"

enum { N_CURSORS = 1024, GROUP_SIZE = 64, N_ROUNDS = 800, COMPUTE = 0, COMM = 1, N_CLASSES = 2, ITEMS_PER_ROUND = 6 };

typedef struct Bench {
    Streams *streams;
    int compute[N_CURSORS], comm[N_CURSORS], group[N_CURSORS];
    int round[N_CURSORS];
} Bench;

static double rate(const void *data, guint32 running, int cls)
{
    (void)data;
    return cls == COMPUTE && running != 1u << COMPUTE ? 0.9 : 1;
}

/* The next round of a cursor; it ends with a call that asks for one more. */
static void push_round(Bench *bench, int cursor)
{
    uint64_t draw = (uint64_t)bench->round[cursor] * N_CURSORS + (uint64_t)cursor;
    StreamWork work = {.duration_ns = 1000 + (SimTime)rng_below(1, RNG_TEST, draw, 1000), .cls = COMPUTE};
    StreamWork join = {.duration_ns = 1500, .cls = COMM};
    int token = streams_add_tokens(bench->streams, 1);
    streams_push_work(bench->streams, bench->compute[cursor], &work);
    streams_push_record(bench->streams, bench->compute[cursor], token);
    streams_push_wait(bench->streams, bench->comm[cursor], token);
    streams_push_join(bench->streams, bench->comm[cursor], bench->group[cursor], 0, &join);
    work.tag = (uint64_t)cursor + 1;
    streams_push_work(bench->streams, bench->compute[cursor], &work);
    streams_push_call(bench->streams, bench->compute[cursor], (uint64_t)cursor + 1);
}

static void on_done(void *self, int stream, uint64_t tag, SimTime start_ns, SimTime end_ns)
{
    Bench *bench = self;
    if (tag == 0 || start_ns != end_ns) {
        return;
    }
    int cursor = (int)tag - 1;
    g_assert(stream == bench->compute[cursor]);
    if (++bench->round[cursor] < N_ROUNDS) {
        push_round(bench, cursor);
    }
}

int main(void)
{
    g_autoptr(SimEngine) engine = sim_engine_new();
    g_autoptr(ShareLaw) law = share_law_new(N_CLASSES, rate, NULL);
    Bench *bench = g_new0(Bench, 1);
    StreamCallbacks callbacks = {.done = on_done, .self = bench};
    bench->streams = streams_new(engine, &callbacks);
    for (int i = 0; i < N_CURSORS; i++) {
        int device = streams_add_device(bench->streams, law);
        bench->compute[i] = streams_add(bench->streams, "compute", device);
        bench->comm[i] = streams_add(bench->streams, "comm", device);
        bench->group[i] = i % GROUP_SIZE == 0 ? streams_add_group(bench->streams, GROUP_SIZE) : bench->group[i - 1];
    }
    double start_s = bench_cpu_s();
    for (int i = 0; i < N_CURSORS; i++) {
        push_round(bench, i);
    }
    g_autoptr(GError) error = NULL;
    if (!sim_engine_run(engine, &error)) {
        fprintf(stderr, "%s\n", error->message);
        return 1;
    }
    bench_print("streams, instructions", (double)N_CURSORS * N_ROUNDS * ITEMS_PER_ROUND, bench_cpu_s() - start_s, 4e6);
    streams_free(bench->streams);
    g_free(bench);
    return 0;
}
