#include "hw/topology.h"

#include "sim/base/error.h"

int64_t topology_host(int64_t node)
{
    return -1 - node;
}

static int64_t leaf_of(const Topology *topology, int64_t node, int64_t nic)
{
    int64_t group = topology->nodes_per_leaf > 0 ? node / topology->nodes_per_leaf : 0;
    return topology->rails ? group * topology->nics_per_node + nic : group;
}

static int64_t pod_of(const Topology *topology, int64_t node)
{
    return topology->nodes_per_pod > 0 ? node / topology->nodes_per_pod : 0;
}

int64_t topology_leaf(const Topology *topology, int64_t node)
{
    return leaf_of(topology, node, 0);
}

int64_t topology_pod(const Topology *topology, int64_t node)
{
    return pod_of(topology, node);
}

/* Capacity of what joins the NICs of `nodes` nodes upward. */
static double uplink(const Topology *topology, int64_t nodes, int64_t nics, double fraction)
{
    return (double)nodes * (double)nics * topology->capacity[TOPOLOGY_NIC_OUT] * fraction;
}

static void count_links(Topology *topology)
{
    const Cluster *cluster = topology->cluster;
    int64_t n_leaves = leaf_of(topology, cluster->n_nodes - 1, topology->nics_per_node - 1) + 1;
    int64_t n_pods = pod_of(topology, cluster->n_nodes - 1) + 1;
    int64_t counts[N_TOPOLOGY_KINDS] = {
        [TOPOLOGY_SCALE_UP_OUT] = cluster->n_ranks,
        [TOPOLOGY_SCALE_UP_IN] = cluster->n_ranks,
        [TOPOLOGY_MESH] = topology->mesh ? cluster->n_ranks * cluster->domain_gpus : 0,
        [TOPOLOGY_NIC_OUT] = cluster->n_nodes * topology->nics_per_node,
        [TOPOLOGY_NIC_IN] = cluster->n_nodes * topology->nics_per_node,
        [TOPOLOGY_LEAF_UP] = n_leaves,
        [TOPOLOGY_LEAF_DOWN] = n_leaves,
        [TOPOLOGY_POD_UP] = n_pods,
        [TOPOLOGY_POD_DOWN] = n_pods,
        [TOPOLOGY_HOST_OUT] = cluster->n_ranks,
        [TOPOLOGY_HOST_IN] = cluster->n_ranks,
    };
    for (int kind = 0; kind < N_TOPOLOGY_KINDS; kind++) {
        topology->n_links[kind] = counts[kind];
        topology->first[kind + 1] = topology->first[kind] + counts[kind];
    }
}

void topology_init(Topology *topology, const Cluster *cluster)
{
    const Device *device = cluster->device;
    *topology = (Topology){.cluster = cluster, .mesh = device->scale_up_mesh, .rails = device->rails};
    topology->gpus_per_nic = device->nics_per_node > 0 ? device->gpus_per_node / device->nics_per_node : 1;
    topology->nics_per_node = quantity_div_up(cluster->gpus_per_node, topology->gpus_per_nic);
    topology->nodes_per_leaf = device->nodes_per_leaf;
    topology->nodes_per_pod = device->nodes_per_leaf * device->leaves_per_pod;
    double leaf_frac = device->leaf_uplink_frac > 0.0 ? device->leaf_uplink_frac : 1.0;
    double pod_frac = device->pod_uplink_frac > 0.0 ? device->pod_uplink_frac : 1.0;
    double *capacity = topology->capacity;
    capacity[TOPOLOGY_SCALE_UP_OUT] = capacity[TOPOLOGY_SCALE_UP_IN] = cluster->scale_up_bytes_per_s;
    capacity[TOPOLOGY_MESH] = cluster->scale_up_bytes_per_s / (double)MAX(device->domain_gpus - 1, 1);
    capacity[TOPOLOGY_NIC_OUT] = cluster->scale_out_bytes_per_s * (double)topology->gpus_per_nic;
    capacity[TOPOLOGY_NIC_IN] = capacity[TOPOLOGY_NIC_OUT];
    int64_t nics = topology->nics_per_node;
    capacity[TOPOLOGY_LEAF_UP] = uplink(topology, topology->nodes_per_leaf, topology->rails ? 1 : nics, leaf_frac);
    capacity[TOPOLOGY_LEAF_DOWN] = capacity[TOPOLOGY_LEAF_UP];
    capacity[TOPOLOGY_POD_UP] = uplink(topology, topology->nodes_per_pod, nics, leaf_frac * pod_frac);
    capacity[TOPOLOGY_POD_DOWN] = capacity[TOPOLOGY_POD_UP];
    capacity[TOPOLOGY_HOST_OUT] = capacity[TOPOLOGY_HOST_IN] = device->host_link_bytes_per_s;
    topology->leaf_binds = topology->nodes_per_leaf > 0 && leaf_frac < 1.0;
    topology->pod_binds = topology->nodes_per_pod > 0 && leaf_frac * pod_frac < 1.0;
    count_links(topology);
}

static int add_link(TopologyLink *links, int n, TopologyKind kind, int64_t idx)
{
    g_assert(n < TOPOLOGY_PATH_MAX);
    links[n] = (TopologyLink){kind, idx};
    return n + 1;
}

/* Place of a rank in its domain. */
static int64_t place_of(const Cluster *cluster, int64_t rank)
{
    int64_t nodes_per_domain = MAX(cluster->domain_gpus / cluster->gpus_per_node, 1);
    return rank % (nodes_per_domain * cluster->gpus_per_node) % cluster->domain_gpus;
}

/* Between two GPUs of one domain. */
static int add_inside(const Topology *topology, int64_t from, int64_t to, TopologyLink *links, int n)
{
    if (topology->mesh) {
        return add_link(links, n, TOPOLOGY_MESH, from * topology->cluster->domain_gpus + place_of(topology->cluster, to));
    }
    n = add_link(links, n, TOPOLOGY_SCALE_UP_OUT, from);
    return add_link(links, n, TOPOLOGY_SCALE_UP_IN, to);
}

/* Between NICs of two nodes. */
static int add_fabric(const Topology *topology, const int64_t nodes[2], const int64_t nics[2], TopologyLink *links, int n)
{
    int64_t from = leaf_of(topology, nodes[0], nics[0]), to = leaf_of(topology, nodes[1], nics[1]);
    n = add_link(links, n, TOPOLOGY_NIC_OUT, nodes[0] * topology->nics_per_node + nics[0]);
    if (from != to && topology->leaf_binds) {
        n = add_link(links, n, TOPOLOGY_LEAF_UP, from);
    }
    if (pod_of(topology, nodes[0]) != pod_of(topology, nodes[1]) && topology->pod_binds) {
        n = add_link(links, n, TOPOLOGY_POD_UP, pod_of(topology, nodes[0]));
        n = add_link(links, n, TOPOLOGY_POD_DOWN, pod_of(topology, nodes[1]));
    }
    if (from != to && topology->leaf_binds) {
        n = add_link(links, n, TOPOLOGY_LEAF_DOWN, to);
    }
    return add_link(links, n, TOPOLOGY_NIC_IN, nodes[1] * topology->nics_per_node + nics[1]);
}

static int rank_path(const Topology *topology, int64_t from, int64_t to, TopologyLink *links)
{
    const Cluster *cluster = topology->cluster;
    if (cluster_domain(cluster, from) == cluster_domain(cluster, to)) {
        return add_inside(topology, from, to, links, 0);
    }
    int64_t size = cluster->gpus_per_node;
    int64_t nodes[2] = {from / size, to / size};
    int64_t nics[2] = {from % size / topology->gpus_per_nic, to % size / topology->gpus_per_nic};
    int n = 0;
    if (topology->rails && nics[0] != nics[1] && nodes[0] != nodes[1]) {
        int64_t on_rail = nodes[0] * size + to % size; /* the GPU of the own node whose NIC leads to the other's leaf */
        if (cluster_domain(cluster, on_rail) == cluster_domain(cluster, from)) {
            n = add_inside(topology, from, on_rail, links, n);
            nics[0] = nics[1];
        }
    }
    return add_fabric(topology, nodes, nics, links, n);
}

/* Host memory of a node to or from a rank. */
static int host_path(const Topology *topology, int64_t node, int64_t rank, gboolean to_host, TopologyLink *links,
                     GError **error)
{
    const Cluster *cluster = topology->cluster;
    TopologyKind host = to_host ? TOPOLOGY_HOST_IN : TOPOLOGY_HOST_OUT;
    int64_t size = cluster->gpus_per_node;
    gboolean unified = cluster->device->unified_memory;
    if (node == rank / size) {
        return add_link(links, 0, host, rank);
    }
    if (!unified || cluster_domain(cluster, node * size) != cluster_domain(cluster, rank)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "rank %" G_GINT64_FORMAT " cannot reach the memory of host %" G_GINT64_FORMAT
                    "; only hosts of its own node, or of its super-node where memory is addressed unified, are in reach",
                    rank, node);
        return 0;
    }
    /* The host's own port is as wide as the links to all GPUs of its node; each of them is one lane of it. */
    int64_t lane = node * size + rank % size;
    int n = to_host ? add_link(links, 0, TOPOLOGY_SCALE_UP_OUT, rank) : add_link(links, 0, host, lane);
    return to_host ? add_link(links, n, host, lane) : add_link(links, n, TOPOLOGY_SCALE_UP_IN, rank);
}

int topology_path(const Topology *topology, int64_t from, int64_t to, TopologyLink *ret_links, GError **error)
{
    const Cluster *cluster = topology->cluster;
    g_assert(from < cluster->n_ranks && to < cluster->n_ranks && from >= -cluster->n_nodes && to >= -cluster->n_nodes);
    if (from == to || (from < 0 && to < 0)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    from == to ? "both ends are the same; a transfer goes from one place to another"
                               : "both ends are hosts; one of them has to be a rank");
        return 0;
    }
    if (from < 0) {
        return host_path(topology, -1 - from, to, FALSE, ret_links, error);
    }
    if (to < 0) {
        return host_path(topology, -1 - to, from, TRUE, ret_links, error);
    }
    return rank_path(topology, from, to, ret_links);
}

int64_t topology_number(const Topology *topology, TopologyLink link)
{
    g_assert(link.idx >= 0 && link.idx < topology->n_links[link.kind]);
    return topology->first[link.kind] + link.idx;
}

int64_t topology_n_links(const Topology *topology)
{
    return topology->first[N_TOPOLOGY_KINDS];
}

char *topology_link_name(const Topology *topology, TopologyLink link)
{
    const int64_t nics = topology->nics_per_node, size = topology->cluster->domain_gpus;
    const long long idx = (long long)link.idx;
    switch (link.kind) {
    case TOPOLOGY_SCALE_UP_OUT:
    case TOPOLOGY_SCALE_UP_IN:
        return g_strdup_printf("rank %lld scale-up %s", idx, link.kind == TOPOLOGY_SCALE_UP_OUT ? "out" : "in");
    case TOPOLOGY_MESH:
        return g_strdup_printf("rank %lld mesh to place %lld", (long long)(link.idx / size), (long long)(link.idx % size));
    case TOPOLOGY_NIC_OUT:
    case TOPOLOGY_NIC_IN:
        return g_strdup_printf("node %lld NIC %lld %s", (long long)(link.idx / nics), (long long)(link.idx % nics),
                               link.kind == TOPOLOGY_NIC_OUT ? "out" : "in");
    case TOPOLOGY_LEAF_UP:
    case TOPOLOGY_LEAF_DOWN:
        return g_strdup_printf("leaf %lld %s", idx, link.kind == TOPOLOGY_LEAF_UP ? "up" : "down");
    case TOPOLOGY_POD_UP:
    case TOPOLOGY_POD_DOWN:
        return g_strdup_printf("pod %lld %s", idx, link.kind == TOPOLOGY_POD_UP ? "up" : "down");
    case TOPOLOGY_HOST_OUT:
    case TOPOLOGY_HOST_IN:
        return g_strdup_printf("rank %lld host link %s", idx, link.kind == TOPOLOGY_HOST_OUT ? "out" : "in");
    case N_TOPOLOGY_KINDS:
    default:
        g_assert_not_reached();
    }
}
