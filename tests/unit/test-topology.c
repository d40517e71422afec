/*
 * Topology: which links a transfer crosses on each kind of network, and that leaving out links that cannot fill changes
 * nothing.
 */
#include "tests/check.h"

#include "hw/topology.h"
#include "hw/transfers.h"
#include "sim/base/error.h"
#include "sim/base/rng.h"

/* A descriptor like the H200's with other network values (JSON members). */
static Cluster *cluster_with(const char *values, int64_t nodes, int64_t per_node, GError **error)
{
    char *dir = check_make_dir();
    g_autofree char *text = g_strdup_printf(
        "{\"name\": \"x\", \"values\": {%s%s"
        "\"peak_bf16\": {\"value\": \"989 TFLOP/s\", \"source\": \"s\"}, \"hbm_bytes\": {\"value\": \"80 GB\", \"source\": \"s\"},"
        "\"hbm_bytes_per_s\": {\"value\": \"2 TB/s\", \"source\": \"s\"}, \"n_sms\": {\"value\": 100, \"source\": \"s\"},"
        "\"host_link_bytes_per_s\": {\"value\": \"25 GB/s\", \"source\": \"s\"},"
        "\"scale_up_bytes_per_s\": {\"value\": \"400 GB/s\", \"source\": \"s\"},"
        "\"scale_out_bytes_per_s\": {\"value\": \"50 GB/s\", \"source\": \"s\"},"
        "\"gpus_per_node\": {\"value\": 8, \"source\": \"s\"}%s}}",
        values, values[0] != '\0' ? ", " : "",
        strstr(values, "domain_gpus") != NULL ? "" : ", \"domain_gpus\": {\"value\": 8, \"source\": \"s\"}");
    g_autofree char *path = check_write_file(dir, "x.json", text);
    Cluster *cluster = cluster_load(path, nodes, per_node, error);
    check_remove_dir(dir);
    return cluster;
}

#define V(name, value) "\"" name "\": {\"value\": " value ", \"source\": \"s\"}"
#define LEAF V("nodes_per_leaf", "2") ", " V("leaf_uplink_frac", "0.5")
#define POD LEAF ", " V("leaves_per_pod", "2") ", " V("pod_uplink_frac", "0.25")

static const struct {
    const char *name, *values;
    int64_t nodes, per_node, from, to;
    const char *path;
} paths[] = {
    {"inside", "", 2, 8, 3, 5, "rank 3 scale-up out+rank 5 scale-up in"},
    {"across", "", 2, 8, 3, 13, "node 0 NIC 3 out+node 1 NIC 5 in"},
    {"shared NICs", V("nics_per_node", "4"), 2, 8, 3, 13, "node 0 NIC 1 out+node 1 NIC 2 in"},
    {"mesh", V("scale_up_mesh", "true"), 2, 8, 11, 13, "rank 11 mesh to place 5"},
    {"part of a node", "", 2, 4, 3, 5, "node 0 NIC 3 out+node 1 NIC 1 in"},
    {"rails, own", V("rails", "true"), 2, 8, 3, 11, "node 0 NIC 3 out+node 1 NIC 3 in"},
    {"rails, hop", V("rails", "true"), 2, 8, 3, 13,
     "rank 3 scale-up out+rank 5 scale-up in+node 0 NIC 5 out+node 1 NIC 5 in"},
    {"leaf, below", LEAF, 8, 8, 0, 8, "node 0 NIC 0 out+node 1 NIC 0 in"},
    {"leaf, over", LEAF, 8, 8, 0, 16, "node 0 NIC 0 out+leaf 0 up+leaf 1 down+node 2 NIC 0 in"},
    {"leaf that cannot fill", V("nodes_per_leaf", "2"), 8, 8, 0, 16, "node 0 NIC 0 out+node 2 NIC 0 in"},
    {"leaf of a rail", LEAF ", " V("rails", "true"), 8, 8, 1, 17,
     "node 0 NIC 1 out+leaf 1 up+leaf 9 down+node 2 NIC 1 in"},
    {"pod", POD, 16, 8, 0, 64, "node 0 NIC 0 out+leaf 0 up+pod 0 up+pod 2 down+leaf 4 down+node 8 NIC 0 in"},
    {"pod, below", POD, 16, 8, 0, 24, "node 0 NIC 0 out+leaf 0 up+leaf 1 down+node 3 NIC 0 in"},
    {"super-node", V("domain_gpus", "32"), 8, 8, 0, 31, "rank 0 scale-up out+rank 31 scale-up in"},
    {"out of a super-node", V("domain_gpus", "32"), 8, 8, 0, 32, "node 0 NIC 0 out+node 4 NIC 0 in"},
    {"host", "", 2, 8, -1, 3, "rank 3 host link out"},
    {"to the host", "", 2, 8, 9, -2, "rank 9 host link in"},
    {"host of another node", V("domain_gpus", "32") ", " V("unified_memory", "true"), 8, 8, -3, 3,
     "rank 19 host link out+rank 3 scale-up in"},
    {"to the host of another node", V("domain_gpus", "32") ", " V("unified_memory", "true"), 8, 8, 3, -3,
     "rank 3 scale-up out+rank 19 host link in"},
};

static void test_paths(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(paths); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Cluster) cluster = cluster_with(paths[i].values, paths[i].nodes, paths[i].per_node, &error);
        check_no_error(error);
        Topology topology;
        topology_init(&topology, cluster);
        TopologyLink links[TOPOLOGY_PATH_MAX];
        int n = topology_path(&topology, paths[i].from, paths[i].to, links, &error);
        check_no_error(error);
        g_autoptr(GString) text = g_string_new(NULL);
        for (int k = 0; k < n; k++) {
            g_autofree char *name = topology_link_name(&topology, links[k]);
            g_string_append_printf(text, "%s%s", k > 0 ? "+" : "", name);
            assert_true(topology_number(&topology, links[k]) < topology_n_links(&topology));
        }
        check_string(text->str, paths[i].path);
    }
}

static void test_capacities(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Cluster) cluster = cluster_with(POD ", " V("nics_per_node", "4") ", " V("scale_up_mesh", "true"), 16, 8, &error);
    check_no_error(error);
    Topology topology;
    topology_init(&topology, cluster);
    check_close(topology.capacity[TOPOLOGY_NIC_OUT], 100e9, 1e-12);          /* of two GPUs */
    check_close(topology.capacity[TOPOLOGY_LEAF_UP], 2 * 400e9 * 0.5, 1e-12); /* of two nodes, 2:1 */
    check_close(topology.capacity[TOPOLOGY_POD_UP], 2 * 2 * 400e9 * 0.5 * 0.25, 1e-12);
    check_close(topology.capacity[TOPOLOGY_MESH], 400e9 / 7, 1e-12);
}

static const struct {
    const char *values, *message;
} mistakes[] = {
    {V("nics_per_node", "3"), "nics_per_node has to divide gpus_per_node"},
    {V("leaf_uplink_frac", "0.5"), "leaf_uplink_frac has no effect without nodes_per_leaf"},
    {V("leaves_per_pod", "2"), "leaves_per_pod has no effect without nodes_per_leaf"},
    {V("nodes_per_leaf", "2") ", " V("pod_uplink_frac", "0.5"), "pod_uplink_frac has no effect without leaves_per_pod"},
};

static void test_mistakes(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    for (size_t i = 0; i < G_N_ELEMENTS(mistakes); i++) {
        assert_null(cluster_with(mistakes[i].values, 1, 8, &error));
        check_error(&error, MOESIM_ERROR_INPUT, mistakes[i].message);
    }
    g_autoptr(Cluster) cluster = cluster_with("", 2, 8, &error);
    Topology topology;
    topology_init(&topology, cluster);
    TopologyLink links[TOPOLOGY_PATH_MAX];
    check_int(topology_path(&topology, 3, 3, links, &error), 0);
    check_error(&error, MOESIM_ERROR_INPUT, "both ends are the same");
    check_int(topology_path(&topology, topology_host(1), 3, links, &error), 0);
    check_error(&error, MOESIM_ERROR_INPUT, "rank 3 cannot reach the memory of host 1");
    check_int(topology_path(&topology, topology_host(1), topology_host(0), links, &error), 0);
    check_error(&error, MOESIM_ERROR_INPUT, "both ends are hosts");
}

enum { N_RANDOM = 200, TRANSFERS_MAX = 40 };

/* Random transfers; every third time few of them, so that some are alone. */
static size_t draw(uint64_t seed, Transfer *transfers)
{
    uint64_t d = 0;
    size_t n = 1 + rng_below(seed, RNG_TEST, d++, seed % 3 == 0 ? 4 : TRANSFERS_MAX);
    for (size_t i = 0; i < n; i++) {
        int64_t from = (int64_t)rng_below(seed, RNG_TEST, d++, 64);
        int64_t to = (from + 1 + (int64_t)rng_below(seed, RNG_TEST, d++, 63)) % 64;
        transfers[i] = (Transfer){.from = from,
                                  .to = to,
                                  .bytes = (double)(rng_below(seed, RNG_TEST, d++, 1000) * 1000),
                                  .start_ns = (double)rng_below(seed, RNG_TEST, d++, 20000)};
    }
    return n;
}

/* Leaves that cannot fill are left out; kept in, they change nothing, nor do transfers taken out of the closed form. */
static void test_pruned_is_equal(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Cluster) cluster = cluster_with(V("nodes_per_leaf", "2"), 8, 8, &error);
    check_no_error(error);
    Topology pruned, whole;
    topology_init(&pruned, cluster);
    topology_init(&whole, cluster);
    whole.leaf_binds = TRUE;
    size_t n_closed = 0, n_flows = 0;
    for (uint64_t seed = 0; seed < N_RANDOM; seed++) {
        Transfer a[TRANSFERS_MAX], b[TRANSFERS_MAX];
        size_t n = draw(seed, a), bad;
        memcpy(b, a, sizeof a);
        TransfersSummary summary;
        assert_true(transfers_run(&pruned, a, n, &summary, &bad, &error));
        assert_true(transfers_run(&whole, b, n, NULL, &bad, &error));
        n_closed += summary.n_closed;
        n_flows += summary.n_flows;
        assert_true(summary.last_end_ns >= summary.busiest_ns * (1.0 - 1e-12));
        for (size_t i = 0; i < n; i++) {
            check_close(a[i].end_ns, b[i].end_ns, 1e-9);
        }
    }
    assert_true(n_closed > 100 && n_flows > 100);
}

/* Two that share nothing are closed forms; one that comes while another runs makes both flows. */
static void test_levels(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Cluster) cluster = cluster_with("", 1, 8, &error);
    Topology topology;
    topology_init(&topology, cluster);
    size_t bad;
    Transfer transfers[] = {
        {.from = 0, .to = 1, .bytes = 4e5},                      /* 0 to 1000 ns alone */
        {.from = 0, .to = 1, .bytes = 4e5, .start_ns = 1000},    /* just after it */
        {.from = 2, .to = 3, .bytes = 4e5},                      /* meets the next */
        {.from = 2, .to = 4, .bytes = 4e5, .start_ns = 500},     /* half of the link from 500 on */
        {.from = 5, .to = 3, .bytes = 4e5, .start_ns = 1200},    /* 2 to 3 is still on its way, though not if alone */
    };
    assert_true(transfers_run(&topology, transfers, G_N_ELEMENTS(transfers), NULL, &bad, &error));
    static const double ends[] = {1000, 2000, 1500, 2000, 2350};
    static const gboolean shared[] = {FALSE, FALSE, TRUE, TRUE, TRUE};
    for (size_t i = 0; i < G_N_ELEMENTS(transfers); i++) {
        check_close(transfers[i].end_ns, ends[i], 1e-9);
        check_int(transfers[i].is_shared, shared[i]);
    }
}

/* The link that bounds each transfer: at the end where others meet it, whichever end that is. */
static void test_bounds(void **state)
{
    (void)state;
    static const struct {
        int64_t from, to;
        double start_ns;
        const char *slowest;
    } cases[] = {
        {0, 4, 0, "rank 4 scale-up in"}, /* three into one rank, one of them out of a rank that sends another way, too */
        {1, 4, 0, "rank 4 scale-up in"},
        {2, 4, 0, "rank 4 scale-up in"},
        {2, 5, 0, "rank 2 scale-up out"},
        {0, 5, 1e6, "rank 0 scale-up out"}, /* two out of one rank */
        {0, 6, 1e6, "rank 0 scale-up out"},
        {0, 7, 2e6, "rank 0 scale-up out"}, /* alone: both ends are as wide */
        {2, 9, 3e6, "node 1 NIC 1 in"},     /* two into one NIC */
        {3, 9, 3e6, "node 1 NIC 1 in"},
        {2, 10, 4e6, "node 0 NIC 2 out"},   /* two out of one */
        {2, 11, 4e6, "node 0 NIC 2 out"},
        {3, 12, 5e6, "node 0 NIC 3 out"}, /* alone, with links that are wider and one that is not */
        {4, 12, 6e6, "node 0 NIC 4 out"},
    };
    g_autoptr(GError) error = NULL;
    g_autoptr(Cluster) cluster = cluster_with("", 2, 8, &error);
    check_no_error(error);
    Topology topology;
    topology_init(&topology, cluster);
    Transfer transfers[G_N_ELEMENTS(cases)];
    size_t bad;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        transfers[i] = (Transfer){.from = cases[i].from, .to = cases[i].to, .bytes = 4e5, .start_ns = cases[i].start_ns};
    }
    assert_true(transfers_run(&topology, transfers, G_N_ELEMENTS(cases), NULL, &bad, &error));
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *name = topology_link_name(&topology, transfers[i].slowest);
        check_string(name, cases[i].slowest);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),           cmocka_unit_test(test_capacities), cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_pruned_is_equal), cmocka_unit_test(test_levels),       cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
