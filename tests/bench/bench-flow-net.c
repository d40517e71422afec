/*
 * Flow nets: completions per second of 16 groups of 448 flows that start again, and whole all-to-alls of many GPUs in
 * islands of 8, whose last ends are known (sizes drawn by a linear congruential generator), beside what SimGrid 3.32 in pure
 * max-min form needs for them: the target is a twentieth.
 */
#include "tests/bench/bench.h"

#include "sim/base/rng.h"
#include "sim/des/flow-net.h"
#include "tests/flow-sizes.h"

#include <math.h>
#include <string.h>

enum { N_GROUPS = 16, N_NODES = 8, N_RAILS = 8, N_ROUNDS = 60 };

typedef struct Bench {
    FlowNet *net;
    FlowSpec specs[N_GROUPS * N_RAILS * N_NODES * (N_NODES - 1)];
    uint64_t n_left, draws;
} Bench;

static void start_one(Bench *bench, uint64_t i)
{
    bench->specs[i].bytes = 1e6 * (1.0 + (double)rng_below(1, RNG_TEST, bench->draws++, 1000000) * 1e-6);
    bench->specs[i].arg = i;
    flow_net_start(bench->net, &bench->specs[i]);
    bench->n_left--;
}

static void on_done(void *self, int flow, uint64_t arg, double end_ns)
{
    Bench *bench = self;
    (void)flow;
    (void)end_ns;
    if (bench->n_left > 0) {
        start_one(bench, arg);
    }
}

/* Every flow that ends starts again with another size, so that as many always run. */
static void bench_groups(void)
{
    Bench *bench = g_new0(Bench, 1);
    bench->net = flow_net_new(on_done, bench);
    uint64_t n = 0;
    for (int g = 0; g < N_GROUPS; g++) {
        int first = g * N_RAILS * N_NODES * 2;
        for (int l = 0; l < N_RAILS * N_NODES * 2; l++) {
            flow_net_add_link(bench->net, 50e9);
        }
        for (int r = 0; r < N_RAILS; r++) {
            for (int pair = 0; pair < N_NODES * N_NODES; pair++) {
                int from = pair / N_NODES, to = pair % N_NODES;
                if (from != to) {
                    bench->specs[n++] = (FlowSpec){.weight = 1,
                                                   .n_links = 2,
                                                   .links = {first + (from * N_RAILS + r) * 2,
                                                             first + (to * N_RAILS + r) * 2 + 1}};
                }
            }
        }
    }
    bench->n_left = n * N_ROUNDS;
    double start_s = bench_cpu_s();
    for (uint64_t i = 0; i < n; i++) {
        start_one(bench, i);
    }
    flow_net_advance(bench->net, HUGE_VAL);
    FlowNetCounts counts = flow_net_counts(bench->net);
    bench_print("flow net, completions, 7,168 running", (double)counts.ended, bench_cpu_s() - start_s, 400e3);
    flow_net_free(bench->net);
    g_free(bench);
}

static void bench_all_to_all(const char *name, int n, gboolean is_pair, double want_s, double simgrid_s)
{
    g_autofree int64_t *sizes = is_pair ? flow_sizes_zipfpair(n) : flow_sizes_zipfdst(n);
    double start_s = bench_cpu_s();
    g_autoptr(FlowNet) net = flow_net_new(NULL, NULL);
    flow_all_to_all_start(net, n, sizes, NULL);
    double end_ns = 0.0;
    for (double next_ns; (next_ns = flow_net_next(net)) < HUGE_VAL; end_ns = next_ns) {
        flow_net_advance(net, next_ns);
    }
    double cpu_s = bench_cpu_s() - start_s;
    FlowNetCounts counts = flow_net_counts(net);
    gboolean exact = fabs(end_ns * 1e-9 - want_s) < 0.6e-11;
    printf("%-44s %8.3f s, %.0f times as fast as SimGrid's %.1f s (bound 20), last end %.14g s, want %.11g: %s; %.0f flows, %.0f solves, %.0f flows each\n", name,
           cpu_s, simgrid_s / cpu_s, simgrid_s, end_ns * 1e-9, want_s, exact ? "equal" : "DIFFERENT", (double)counts.ended,
           (double)counts.solves, (double)counts.solved_flows / (double)MAX(counts.solves, 1));
    if (!exact) {
        exit(1);
    }
}

int main(void)
{
    bench_groups();
    bench_all_to_all("flow net, zipfpair all-to-all of 128", 128, TRUE, 0.00452814492, 37.1);
    bench_all_to_all("flow net, zipfdst all-to-all of 512", 512, FALSE, 0.79390385424, 80.7);
    return 0;
}
