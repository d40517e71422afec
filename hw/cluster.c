#include "hw/cluster.h"

#include "sim/base/error.h"

Cluster *cluster_load(const char *preset_or_path, int64_t n_nodes, int64_t gpus_per_node, GError **error)
{
    g_autoptr(Device) device = device_load(preset_or_path, error);
    if (device == NULL) {
        return NULL;
    }
    if (gpus_per_node == 0) {
        gpus_per_node = device->gpus_per_node;
    }
    if (gpus_per_node > device->gpus_per_node) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "cluster %s: gpus_per_node %" G_GINT64_FORMAT " is more than its nodes have, %" G_GINT64_FORMAT
                    "; a descriptor with {\"base\": \"%s\"} and gpus_per_node in its values says how larger nodes are joined",
                    preset_or_path, gpus_per_node, device->gpus_per_node, device->name);
        return NULL;
    }
    int64_t n_ranks;
    if (n_nodes < 1 || n_nodes > CLUSTER_NODES_MAX || gpus_per_node < 1 || !quantity_mul(n_nodes, gpus_per_node, &n_ranks)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "cluster %s: %" G_GINT64_FORMAT " nodes of %" G_GINT64_FORMAT
                    " GPUs make no cluster; both are at least 1, nodes at most %d",
                    preset_or_path, n_nodes, gpus_per_node, CLUSTER_NODES_MAX);
        return NULL;
    }
    Cluster *cluster = g_new0(Cluster, 1);
    cluster->n_nodes = n_nodes;
    cluster->gpus_per_node = gpus_per_node;
    cluster->n_ranks = n_ranks;
    /* A domain inside a node shrinks with the node; one that spans nodes has as many of them, with what GPUs they have. */
    cluster->domain_gpus = device->domain_gpus > device->gpus_per_node ? device->domain_gpus / device->gpus_per_node * gpus_per_node
                                                                       : MIN(device->domain_gpus, gpus_per_node);
    cluster->scale_up_bytes_per_s = device->scale_up_bytes_per_s;
    cluster->scale_out_bytes_per_s = device->scale_out_bytes_per_s;
    cluster->device = g_steal_pointer(&device);
    return cluster;
}

Cluster *cluster_ref(Cluster *cluster)
{
    g_atomic_int_inc(&cluster->extra_refs);
    return cluster;
}

void cluster_free(Cluster *cluster)
{
    if (cluster == NULL || g_atomic_int_add(&cluster->extra_refs, -1) > 0) {
        return;
    }
    device_free(cluster->device);
    g_free(cluster);
}

int64_t cluster_domain(const Cluster *cluster, int64_t rank)
{
    if (cluster->domain_gpus >= cluster->gpus_per_node) {
        int64_t nodes_per_domain = MAX(cluster->domain_gpus / cluster->gpus_per_node, 1);
        return rank / cluster->gpus_per_node / nodes_per_domain;
    }
    int64_t node = rank / cluster->gpus_per_node;
    int64_t domains_per_node = quantity_div_up(cluster->gpus_per_node, cluster->domain_gpus);
    return node * domains_per_node + rank % cluster->gpus_per_node / cluster->domain_gpus;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

CollGroup cluster_group(const Cluster *cluster, int64_t first, int64_t stride, int64_t n_ranks)
{
    g_assert(n_ranks >= 1 && stride >= 0 && first >= 0);
    /* Domains lie alike in every node, or in every domain of several nodes: members repeat after so many. */
    int64_t alike = cluster->gpus_per_node * MAX(cluster->domain_gpus / cluster->gpus_per_node, 1);
    int64_t period = stride > 0 ? alike / common_divisor(alike, stride) : n_ranks;
    int64_t best = 1, run = 0, last = -1;
    for (int64_t i = 0; stride > 0 && i < MIN(n_ranks, 2 * period); i++) {
        int64_t domain = cluster_domain(cluster, first + i * stride);
        run = domain == last ? run + 1 : 1;
        last = domain;
        best = MAX(best, run);
    }
    return (CollGroup){.n_ranks = n_ranks, .per_domain = stride > 0 ? best : n_ranks, .stride = stride};
}
