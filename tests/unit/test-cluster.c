/* Groups on nodes and domains, and the cost of collectives over them. */
#include "tests/check.h"

#include "hw/cluster.h"
#include "sim/base/error.h"

static Cluster *load(const char *preset, int64_t nodes, int64_t per_node)
{
    g_autoptr(GError) error = NULL;
    Cluster *cluster = cluster_load(preset, nodes, per_node, &error);
    check_no_error(error);
    return cluster;
}

static const struct {
    int64_t nodes, per_node, first, stride, n, per_domain;
} geometries[] = {
    {1, 2, 0, 1, 2, 2}, {4, 8, 0, 1, 32, 8}, {4, 8, 0, 8, 4, 1},  {4, 8, 3, 8, 4, 1}, {4, 8, 0, 4, 8, 2},
    {2, 8, 6, 1, 4, 2}, {8, 8, 0, 1, 8, 8},  {8, 8, 0, 2, 16, 4}, {1, 8, 5, 1, 1, 1}, {3, 4, 0, 1, 12, 4},
};

static void test_geometry(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(geometries); i++) {
        g_autoptr(Cluster) cluster = load("h200-sxm", geometries[i].nodes, geometries[i].per_node);
        CollGroup group = cluster_group(cluster, geometries[i].first, geometries[i].stride, geometries[i].n);
        check_int(group.n_ranks, geometries[i].n);
        check_int(group.per_domain, geometries[i].per_domain);
    }
}

/* The geometry that members one after the other show, for whatever node, domain, first member and stride. */
static void test_geometry_by_members(void **state)
{
    (void)state;
    static const char *const presets[] = {"h200-sxm", "gb200", "ascend-910c", "gh200"};
    for (size_t p = 0; p < G_N_ELEMENTS(presets); p++) {
        for (int64_t per_node = 1; per_node <= 4; per_node++) {
            g_autoptr(Cluster) cluster = load(presets[p], 400, per_node);
            for (int64_t draw = 0; draw < 200; draw++) {
                int64_t first = draw % 7, stride = 1 + draw % 13 * (draw % 3), n = 1 + draw % 97, best = 0, run = 0, last = -1;
                for (int64_t i = 0; i < n; i++) {
                    int64_t domain = cluster_domain(cluster, first + i * stride);
                    run = domain == last ? run + 1 : 1;
                    last = domain;
                    best = MAX(best, run);
                }
                CollGroup group = cluster_group(cluster, first, stride, n);
                check_int(group.per_domain, best);
                check_int(group.stride, stride);
            }
        }
    }
    /* as quick for all ranks of the largest cluster */
    g_autoptr(Cluster) largest = load("h200-sxm", CLUSTER_NODES_MAX, 8);
    check_int(cluster_group(largest, 0, 1, largest->n_ranks).per_domain, 8);
    check_int(cluster_group(largest, 0, 64, largest->n_ranks / 64).per_domain, 1);
}

/* A node with fewer GPUs: its domains shrink, and a domain of whole nodes has as many nodes. */
static void test_domains(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        int64_t per_node, domain_gpus;
    } cases[] = {{"h200-sxm", 8, 8}, {"h200-sxm", 3, 3}, {"gb200", 4, 72}, {"gb200", 3, 54}, {"gb200", 1, 18}};
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Cluster) cluster = load(cases[i].preset, 40, cases[i].per_node);
        check_int(cluster->domain_gpus, cases[i].domain_gpus);
        check_int(cluster_domain(cluster, cases[i].domain_gpus - 1), 0);
        check_int(cluster_domain(cluster, cases[i].domain_gpus), 1);
    }
}

static void test_mistakes(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    assert_null(cluster_load("h200-sxm", 0, 8, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "at least 1");
    assert_null(cluster_load("h200-sxm", (int64_t)CLUSTER_NODES_MAX + 1, 8, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "nodes at most 16777216");
    assert_null(cluster_load("gb200", 2, 5, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "gpus_per_node 5 is more than its nodes have, 4");
    assert_null(cluster_load("h200", 1, 8, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "h200-sxm");
}

/* No collective beats the link; all grow with bytes and none shrinks when ranks join. */
static void test_bounds(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{2, 2}, {4, 4}, {8, 8}, {16, 8}, {64, 8}, {128, 8}, {16, 1}};
    g_autoptr(Cluster) cluster = load("h200-sxm", 16, 8);
    for (int kind = 0; kind < N_COLLS; kind++) {
        for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
            CollGroup group = {.n_ranks = sizes[i][0], .per_domain = sizes[i][1]};
            SimTime last = 0;
            for (int64_t bytes = 1024; bytes <= 1LL << 34; bytes *= 4) {
                Evidence evidence = EVIDENCE_MEASURED;
                SimTime ns = coll_ns(cluster, (CollKind)kind, &group, bytes, &evidence);
                assert_true(ns >= last);
                assert_true(group.n_ranks == 2 || evidence >= EVIDENCE_DATASHEET);
                double moved = kind == COLL_send_recv
                                   ? (double)bytes
                                   : (double)bytes * (double)(group.n_ranks - 1) / (double)group.n_ranks;
                /* The fastest way in or out of a rank: its domain links and its NIC together. */
                double rate = cluster->scale_up_bytes_per_s + cluster->scale_out_bytes_per_s;
                if (group.per_domain > 1 || kind == COLL_send_recv) {
                    assert_true((double)ns * 1e-9 >= moved / rate / (kind == COLL_all_reduce ? 0.5 : 1.0) * 0.999);
                }
                last = ns;
            }
        }
    }
    CollGroup one = {.n_ranks = 1, .per_domain = 1};
    check_int(coll_ns(cluster, COLL_all_gather, &one, 1 << 30, NULL), 0);
}

/* Across nodes the NICs carry each node's missing part once per rail: 8 x 50 GB/s into a node. */
static void test_hierarchy(void **state)
{
    (void)state;
    g_autoptr(Cluster) cluster = load("h200-sxm", 4, 8);
    CollGroup all = cluster_group(cluster, 0, 1, 32), rails = cluster_group(cluster, 0, 8, 4);
    double bytes = 8.0 * (1 << 30);
    double into_node = bytes * 24.0 / 32.0 / 400e9;
    double got = (double)coll_ns(cluster, COLL_all_gather, &all, (int64_t)bytes, NULL) * 1e-9;
    assert_true(got >= into_node && got < 1.5 * into_node);
    assert_true(coll_ns(cluster, COLL_all_gather, &rails, 1 << 30, NULL) >
                coll_ns(cluster, COLL_all_gather, &all, 1 << 30, NULL));
    check_string(coll_name(COLL_reduce_scatter), "reduce_scatter");
    /* The busiest level decides an all-to-all. */
    SimTime inside = coll_all_to_all_ns(cluster, &all, 1 << 28, 0, 0, NULL);
    SimTime both = coll_all_to_all_ns(cluster, &all, 1 << 28, 1 << 28, 0, NULL);
    assert_true(both > 3 * inside);
}

/*
 * Two GPUs with unequal parts, as hw/calibration/h200/collectives_2gpu.csv has them: bytes a rank sends, share that goes from
 * the first to the second, seconds. Small ones are left out: there the stopwatch shows the host, which makes lists of splits;
 * in all it shows 36 us before the kernel starts.
 */
static const struct {
    double bytes, fraction, seconds;
} uneven[] = {
    {67108864, 0.5, 0.000195712},   {536870912, 0.5, 0.001081856},
    {67108864, 0.75, 0.000202112},  {536870912, 0.75, 0.001142688},
};

static void test_uneven(void **state)
{
    (void)state;
    g_autoptr(Cluster) cluster = load("h200-sxm", 1, 2);
    CollGroup pair = {2, 2};
    for (size_t i = 0; i < G_N_ELEMENTS(uneven); i++) {
        double there = uneven[i].bytes * uneven[i].fraction, back = uneven[i].bytes - there;
        CollExchange exchange = {.domain_bytes = (int64_t)((there + back) / 2), .one_way_bytes = (int64_t)MAX(there, back)};
        SimTime ns = coll_exchange_ns(cluster, &pair, &exchange, NULL);
        check_close((double)ns * 1e-9 + 36e-6, uneven[i].seconds, 0.05);
        assert_true(ns >= coll_all_to_all_ns(cluster, &pair, exchange.domain_bytes, 0, 0, NULL));
    }
}

int main(void)
{
    const struct CMUnitTest group[] = {
        cmocka_unit_test(test_uneven),
        cmocka_unit_test(test_geometry),
        cmocka_unit_test(test_geometry_by_members),
        cmocka_unit_test(test_domains),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_hierarchy),
    };
    return cmocka_run_group_tests(group, NULL, NULL);
}
