/*
 * Random networks: the flow net ends every flow when the slow way says so, and its rates are max-min fair at every
 * moment: no link over its capacity, and every flow bounded by a full link on which none of its weight gets more.
 */
#include "sim/des/flow-net.h"
#include "tests/check.h"
#include "tests/property/flow-brute.h"

#include "sim/base/rng.h"

enum { N_NETWORKS = 10000, LINKS_MAX = 12, FLOWS_MAX = 24 };

typedef struct Case {
    int n_links, n_flows;
    double capacities[LINKS_MAX]; /* bytes per ns */
    BruteFlow flows[FLOWS_MAX];
    FlowNet *net;
    int running[FLOWS_MAX]; /* index in the net, -1 = not running */
    double end_ns[FLOWS_MAX];
    uint64_t seed, draw;
} Case;

static int below(Case *c, int n)
{
    return (int)rng_below(c->seed, RNG_TEST, c->draw++, (uint64_t)n);
}

static double uniform(Case *c)
{
    return rng_uniform(c->seed, RNG_TEST, c->draw++);
}

/* Few sizes, capacities and starts in every third network, so that ties happen. */
static void draw_case(Case *c, uint64_t seed)
{
    *c = (Case){.seed = seed};
    gboolean ties = seed % 3 == 0, all_at_once = seed % 2 == 0;
    c->n_links = 1 + below(c, LINKS_MAX);
    c->n_flows = 1 + below(c, FLOWS_MAX);
    for (int l = 0; l < c->n_links; l++) {
        c->capacities[l] = ties ? 1.0 + below(c, 3) : pow(10.0, 3.0 * uniform(c) - 1.0);
    }
    for (int f = 0; f < c->n_flows; f++) {
        BruteFlow *flow = &c->flows[f];
        flow->bytes = ties ? 1000.0 * (1 + below(c, 3)) : floor(1e6 * uniform(c));
        flow->weight = below(c, 3) == 0 ? 1 + below(c, 5) : 1;
        flow->start_ns = all_at_once ? 0.0 : ties ? 500.0 * below(c, 4) : floor(1e5 * uniform(c));
        int want = 1 + below(c, MIN(c->n_links, 4)), first = below(c, c->n_links);
        for (int k = 0; k < want; k++) { /* different links: every one of a walk with steps of one or two */
            flow->links[flow->n_links++] = (first + k) % c->n_links;
        }
    }
}

static void on_done(void *self, int flow, uint64_t arg, double end_ns)
{
    Case *c = self;
    check_int(c->running[arg], flow);
    c->running[arg] = -1;
    c->end_ns[arg] = end_ns;
}

static void check_fair(Case *c)
{
    double load[LINKS_MAX] = {0}, most[LINKS_MAX] = {0};
    for (int f = 0; f < c->n_flows; f++) {
        for (int k = 0; c->running[f] >= 0 && k < c->flows[f].n_links; k++) {
            double rate = flow_net_rate(c->net, c->running[f]) * 1e-9;
            load[c->flows[f].links[k]] += rate;
            most[c->flows[f].links[k]] = MAX(most[c->flows[f].links[k]], rate / c->flows[f].weight);
        }
    }
    for (int l = 0; l < c->n_links; l++) {
        assert_true(load[l] <= c->capacities[l] * (1.0 + 1e-12));
    }
    for (int f = 0; f < c->n_flows; f++) {
        if (c->running[f] >= 0) {
            int l = flow_net_bottleneck(c->net, c->running[f]);
            double rate = flow_net_rate(c->net, c->running[f]) * 1e-9;
            check_close(load[l], c->capacities[l], 1e-12);
            check_close(rate / c->flows[f].weight, most[l], 1e-12);
        }
    }
}

static void start_due(Case *c, double now_ns)
{
    for (int f = 0; f < c->n_flows; f++) {
        BruteFlow *flow = &c->flows[f];
        if (flow->start_ns == now_ns) {
            FlowSpec spec = {
                .bytes = flow->bytes, .weight = (guint32)flow->weight, .n_links = flow->n_links, .arg = (uint64_t)f};
            memcpy(spec.links, flow->links, sizeof spec.links);
            c->running[f] = flow_net_start(c->net, &spec);
        }
    }
}

static double next_start(const Case *c, double now_ns)
{
    double next_ns = HUGE_VAL;
    for (int f = 0; f < c->n_flows; f++) {
        if (c->flows[f].start_ns > now_ns) {
            next_ns = MIN(next_ns, c->flows[f].start_ns);
        }
    }
    return next_ns;
}

static void run_case(Case *c)
{
    g_autoptr(FlowNet) net = c->net = flow_net_new(on_done, c);
    for (int l = 0; l < c->n_links; l++) {
        flow_net_add_link(net, c->capacities[l] * 1e9);
    }
    for (int f = 0; f < c->n_flows; f++) {
        c->running[f] = -1;
    }
    for (double now_ns = 0.0; now_ns < HUGE_VAL;) {
        start_due(c, now_ns);
        check_fair(c);
        double start_ns = next_start(c, now_ns);
        double end_ns = flow_net_next(net);
        now_ns = MIN(start_ns, end_ns);
        if (now_ns < HUGE_VAL) {
            flow_net_advance(net, now_ns);
        }
    }
    check_int(flow_net_n_running(net), 0);
    check_int(flow_net_counts(net).ended, c->n_flows);
}

static void test_random_networks(void **state)
{
    (void)state;
    static Case c;
    for (uint64_t seed = 0; seed < N_NETWORKS; seed++) {
        draw_case(&c, seed);
        run_case(&c);
        brute_run(c.flows, c.n_flows, c.capacities, c.n_links);
        for (int f = 0; f < c.n_flows; f++) {
            if (!(fabs(c.end_ns[f] - c.flows[f].end_ns) <= 1e-9 * c.flows[f].end_ns)) {
                print_error("network %d, flow %d\n", (int)seed, f);
            }
            check_close(c.end_ns[f], c.flows[f].end_ns, 1e-9);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_networks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
