/*
 * Parts of links that collectives say they take, against their transfers one by one over the links of the topology: for every
 * device and for networks with and without rails, with uplinks that are fewer than what lies below them. And paces of two
 * collectives at once by these parts, against water-filling over all links of the cluster; and against what two measured
 * collectives do to each other.
 */
#include "tests/check.h"

#include <stdio.h>

#include "hw/topology.h"
#include "sim/base/csv-read.h"

enum { N_NODES = 16 };

/* How nodes hang together. */
static const struct Fabric {
    const char *name;
    gboolean rails;
    int64_t nodes_per_leaf, leaves_per_pod;
    double leaf_frac, pod_frac;
} fabrics[] = {
    {"one fabric", FALSE, 0, 0, 0, 0},       {"rails", TRUE, 0, 0, 0, 0},
    {"leaves 2:1", FALSE, 4, 0, 0.5, 0},     {"rails and leaves 2:1", TRUE, 4, 0, 0.5, 0},
    {"leaves 8:1", FALSE, 4, 0, 0.125, 0},   {"pods 4:1", FALSE, 2, 2, 1, 0.25},
    {"leaves 2:1, pods 2:1", TRUE, 2, 2, 0.5, 0.5},
};

/* Seconds that each link of the cluster is busy. */
typedef struct Links {
    Topology topology;
    double *busy_s;
} Links;

static void carry(Links *links, int64_t from, int64_t to, double bytes)
{
    TopologyLink path[TOPOLOGY_PATH_MAX];
    int n = from == to ? 0 : topology_path(&links->topology, from, to, path, NULL);
    for (int k = 0; k < n; k++) {
        links->busy_s[topology_number(&links->topology, path[k])] += bytes / links->topology.capacity[path[k].kind];
    }
}

/* All groups of a kind at once: rings through the same place of all domains, or even exchanges between them. */
static void carry_all(Links *links, const CollGroup *group, CollKind kind, int64_t bytes)
{
    const Cluster *cluster = links->topology.cluster;
    int64_t n = group->n_ranks, per = group->per_domain, span = n * group->stride;
    for (int64_t rank = 0; rank < cluster->n_ranks; rank++) {
        int64_t first = rank / span * span + rank % group->stride, i = rank % span / group->stride;
        if (kind == COLL_all_gather && n > per) {
            carry(links, rank, first + (i + per) % n * group->stride, (double)bytes * (double)(n / per - 1) / (double)n);
        }
        for (int64_t peer = 0; kind == COLL_all_to_all && peer < n; peer++) {
            carry(links, rank, first + peer * group->stride, (double)bytes / (double)n);
        }
    }
}

static double busiest(const Links *links, TopologyKind kind)
{
    double most = 0.0;
    for (int64_t i = links->topology.first[kind]; i < links->topology.first[kind + 1]; i++) {
        most = fmax(most, links->busy_s[i]);
    }
    return most;
}

/* Share of the NICs' datasheet rate that messages reach: what the closed form itself takes for a long one. */
static double nic_share(const Cluster *cluster)
{
    CollGroup pair = {2, 1, cluster->gpus_per_node};
    int64_t bytes = 1LL << 40;
    SimTime more_ns = coll_ns(cluster, COLL_send_recv, &pair, 2 * bytes, NULL) - coll_ns(cluster, COLL_send_recv, &pair, bytes, NULL);
    return (double)bytes / cluster->scale_out_bytes_per_s / ((double)more_ns * 1e-9);
}

static void check_parts(const Links *links, const CollPrice *price, const char *what)
{
    static const TopologyKind kinds[N_NET_LEVELS][2] = {[NET_NIC] = {TOPOLOGY_NIC_OUT, TOPOLOGY_NIC_IN},
                                                        [NET_LEAF] = {TOPOLOGY_LEAF_UP, TOPOLOGY_LEAF_DOWN},
                                                        [NET_POD] = {TOPOLOGY_POD_UP, TOPOLOGY_POD_DOWN}};
    const gboolean binds[N_NET_LEVELS] = {[NET_NIC] = TRUE, [NET_LEAF] = links->topology.leaf_binds, [NET_POD] = links->topology.pod_binds};
    double most = 0.0, seconds = (double)price->ns * 1e-9, share = nic_share(links->topology.cluster);
    for (int level = NET_NIC; level < N_NET_LEVELS; level++) {
        for (int way = 0; binds[level] && way < 2; way++) {
            double busy = busiest(links, kinds[level][way]) / share, part = (double)link_load_part(price->load, level) / LINK_PART_ONE;
            if (fabs(part - fmin(busy / seconds, 1.0)) > 1.0 / LINK_PART_ONE) {
                fail_msg("%s, %s: says it takes %f of the links, takes %f", what, net_level_name((NetLevel)level), part, busy / seconds);
            }
            most = fmax(most, busy);
        }
    }
    assert_true(most <= seconds); /* no network is faster than its busiest link */
}

/* Paces of two by water-filling over every link outside the domains. */
static void fill(const Links *links, const CollPrice *prices, double *paces)
{
    double share = nic_share(links[0].topology.cluster), least = 1.0;
    int64_t tight = -1;
    for (int64_t l = links->topology.first[TOPOLOGY_NIC_OUT]; l < links->topology.first[TOPOLOGY_HOST_OUT]; l++) {
        double sum = 0.0;
        for (int i = 0; i < 2; i++) {
            sum += links[i].busy_s[l] / share / ((double)prices[i].ns * 1e-9);
        }
        if (sum > 0.0 && 1.0 / sum < least) {
            least = 1.0 / sum;
            tight = l;
        }
    }
    for (int i = 0; i < 2; i++) {
        paces[i] = tight >= 0 && links[i].busy_s[tight] > 0.0 ? least : 1.0;
    }
}

static void check_pair(const Links *links, const CollPrice *prices)
{
    /* ports inside the domains left out, as water-filling leaves them out */
    const LinkLoad outside = LINK_LOAD_MASK & ~(LinkLoad)LINK_PART_ONE;
    LinkLoad loads[2] = {prices[0].load & outside, prices[1].load & outside};
    guint32 paces[2];
    double want[2];
    link_load_paces(loads, 2, paces);
    fill(links, prices, want);
    for (int i = 0; i < 2; i++) {
        if (fabs((double)paces[i] / LINK_PACE_ONE - want[i]) > 5e-3) {
            fail_msg("pace %f, over all links %f", (double)paces[i] / LINK_PACE_ONE, want[i]);
        }
    }
    assert_true(link_loads_meet(loads, 2) || (paces[0] == LINK_PACE_ONE && paces[1] == LINK_PACE_ONE));
}

static void hang(Cluster *cluster, const struct Fabric *fabric)
{
    Device *device = cluster->device;
    device->rails = fabric->rails;
    device->nodes_per_leaf = fabric->nodes_per_leaf;
    device->leaves_per_pod = fabric->leaves_per_pod;
    device->leaf_uplink_frac = fabric->leaf_frac;
    device->pod_uplink_frac = fabric->pod_frac;
}

static void check_device(const char *preset, const struct Fabric *fabric)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Cluster) cluster = cluster_load(preset, N_NODES, 0, &error);
    check_no_error(error);
    int64_t gpus = cluster->gpus_per_node;
    cluster->domain_gpus = MIN(cluster->domain_gpus, gpus); /* uplinks above super-nodes are no matter of nodes */
    hang(cluster, fabric);
    /* parameters over all ranks, over ranks of the same experts, over replicas; tokens over 2 and 8 nodes */
    const struct {
        CollKind kind;
        int64_t stride, n;
    } cases[] = {{COLL_all_gather, 1, N_NODES * gpus}, {COLL_all_gather, 2 * gpus, N_NODES / 2}, {COLL_all_gather, 8 * gpus, 2},
                 {COLL_all_to_all, 1, 2 * gpus},       {COLL_all_to_all, 1, 8 * gpus},           {COLL_all_gather, gpus, N_NODES}};
    Links links[G_N_ELEMENTS(cases)];
    CollPrice prices[G_N_ELEMENTS(cases)];
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        CollGroup group = cluster_group(cluster, 0, cases[i].stride, cases[i].n);
        int64_t bytes = (int64_t)1 << (26 + i % 3 * 3);
        g_autofree char *what = g_strdup_printf("%s, %s, %s of %" G_GINT64_FORMAT " ranks", preset, fabric->name, coll_name(cases[i].kind), cases[i].n);
        topology_init(&links[i].topology, cluster);
        links[i].busy_s = g_new0(double, topology_n_links(&links[i].topology));
        carry_all(&links[i], &group, cases[i].kind, bytes);
        prices[i] = coll_price(cluster, cases[i].kind, &group, bytes);
        check_parts(&links[i], &prices[i], what);
        for (size_t k = 0; k < i; k++) {
            Links both[2] = {links[k], links[i]};
            CollPrice two[2] = {prices[k], prices[i]};
            check_pair(both, two);
        }
    }
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_free(links[i].busy_s);
    }
}

static void test_fabric(void **state)
{
    g_auto(GStrv) presets = device_preset_names();
    for (char **preset = presets; *preset != NULL; preset++) {
        check_device(*preset, *state);
    }
}

static double cell(const CsvTable *table, size_t row, const char *column)
{
    double value = NAN;
    assert_true(csv_table_number(table, row, (size_t)csv_table_find(table, column), &value, NULL));
    return value;
}

static CollPrice measured_price(const Cluster *cluster, const CsvTable *table, size_t row, const char *which)
{
    g_autofree char *bytes = g_strdup_printf("%s_bytes", which);
    const char *name = csv_table_cell(table, row, (size_t)csv_table_find(table, which));
    CollGroup pair = {2, 2, 1};
    for (int kind = 0; kind < N_COLLS; kind++) {
        if (strcmp(coll_name((CollKind)kind), name) == 0) {
            return coll_price(cluster, (CollKind)kind, &pair, (int64_t)cell(table, row, bytes));
        }
    }
    fail_msg("no collective %s", name);
    return (CollPrice){0};
}

/* Rates of two collectives at once, of what they are alone, within 10 % on average (a half for each: 21 %). */
static void test_measured_pairs(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Cluster) cluster = cluster_load("h200-sxm", 1, 2, &error);
    g_autofree char *path = check_source_path("hw/calibration/h200/collective_pairs_2gpu.csv");
    g_autoptr(CsvTable) table = csv_table_load(path, &error);
    check_no_error(error);
    double sum = 0.0;
    size_t n = csv_table_n_rows(table);
    for (size_t row = 0; row < n; row++) {
        double alone[2] = {cell(table, row, "first_alone_ms"), cell(table, row, "second_alone_ms")};
        double spans[2] = {cell(table, row, "first_span_ms"), cell(table, row, "second_span_ms")};
        double first = cell(table, row, "n_first") * alone[0] / spans[0];
        double second = (cell(table, row, "n_second") * alone[1] - (spans[1] - spans[0])) / spans[0];
        LinkLoad loads[2] = {measured_price(cluster, table, row, "first").load, measured_price(cluster, table, row, "second").load};
        guint32 paces[2];
        link_load_paces(loads, 2, paces);
        sum += fabs((double)paces[0] / LINK_PACE_ONE / first - 1.0) + fabs((double)paces[1] / LINK_PACE_ONE / second - 1.0);
    }
    fprintf(stderr, "# %d pairs of collectives on two GPUs: rates off by %.1f %% on average\n", (int)n, 100.0 * sum / (2.0 * (double)n));
    assert_true(n >= 20 && sum / (2.0 * (double)n) < 0.1);
}

int main(void)
{
    struct CMUnitTest tests[G_N_ELEMENTS(fabrics) + 1] = {cmocka_unit_test(test_measured_pairs)};
    for (size_t i = 0; i < G_N_ELEMENTS(fabrics); i++) {
        tests[i + 1] = (struct CMUnitTest){.name = fabrics[i].name, .test_func = test_fabric, .initial_state = (void *)(uintptr_t)&fabrics[i]};
    }
    return _cmocka_run_group_tests("coll-links", tests, G_N_ELEMENTS(tests), NULL, NULL);
}
