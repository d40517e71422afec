/*
 * Topology: the links of a cluster, and those that a transfer crosses.
 *
 * A GPU has a port into its scale-up domain, each way; where the domain is a full mesh (xGMI, HCCS) a link to each peer
 * instead. Outside its domain it goes over its NIC, which GPUs may share. NICs of a node hang on one leaf switch, or,
 * with rails, the n-th NICs of many nodes on the n-th of as many leaves; a transfer to another place in the node then
 * first hops inside its own domain to the GPU whose rail leads there. Leaves are joined by a spine, and pods of leaves by
 * a core. Host memory is reached over the GPU's host link, or, in a super-node with unified memory addressing, over the
 * scale-up network from any node of the domain.
 *
 * Links that can never fill before others on every path over them do are left out (a leaf whose uplinks carry what its
 * NICs bring): they would only tie together what does not meet.
 */
#pragma once

#include "hw/cluster.h"

typedef enum TopologyKind {
    TOPOLOGY_SCALE_UP_OUT, /* of a GPU */
    TOPOLOGY_SCALE_UP_IN,
    TOPOLOGY_MESH,    /* from one GPU to another of its domain */
    TOPOLOGY_NIC_OUT, /* of a NIC */
    TOPOLOGY_NIC_IN,
    TOPOLOGY_LEAF_UP, /* of a leaf switch */
    TOPOLOGY_LEAF_DOWN,
    TOPOLOGY_POD_UP, /* of a pod of leaves */
    TOPOLOGY_POD_DOWN,
    TOPOLOGY_HOST_OUT, /* host memory to a GPU, or to the scale-up network */
    TOPOLOGY_HOST_IN,
    N_TOPOLOGY_KINDS
} TopologyKind;

enum { TOPOLOGY_PATH_MAX = 8 };

/* A link: the idx-th of its kind. */
typedef struct TopologyLink {
    TopologyKind kind;
    int64_t idx;
} TopologyLink;

typedef struct Topology {
    const Cluster *cluster; /* borrowed */
    gboolean mesh, rails, leaf_binds, pod_binds;
    int64_t gpus_per_nic, nics_per_node;
    int64_t nodes_per_leaf, nodes_per_pod; /* 0 = all */
    double capacity[N_TOPOLOGY_KINDS];     /* bytes per second of each link of a kind */
    int64_t n_links[N_TOPOLOGY_KINDS];
    int64_t first[N_TOPOLOGY_KINDS + 1]; /* number of the first link of a kind among all */
} Topology;

/* Fills in the topology of a cluster. */
void topology_init(Topology *topology, const Cluster *cluster);

/* The end of a transfer that is the host memory of a node; ranks are ends themselves. */
int64_t topology_host(int64_t node);

/*
 * Links that a transfer crosses, in order; returns how many. Both ends are ranks or hosts of the cluster. 0 with an
 * error: an end to itself, or a host that cannot be reached from there; the message names the ends, not the file.
 */
int topology_path(const Topology *topology, int64_t from, int64_t to, TopologyLink *ret_links, GError **error);

/* Leaf (of the first rail) and pod that a node hangs on. */
int64_t topology_leaf(const Topology *topology, int64_t node);
int64_t topology_pod(const Topology *topology, int64_t node);

/* Number of a link among all links of the cluster; of how many. */
int64_t topology_number(const Topology *topology, TopologyLink link);
int64_t topology_n_links(const Topology *topology);

/* "rank 3 scale-up out", "node 1 NIC 2 in"; caller frees. */
char *topology_link_name(const Topology *topology, TopologyLink link);
