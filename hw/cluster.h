/*
 * Cluster: nodes of one device kind, their links, and how a group of ranks lies on them.
 *
 * Ranks are numbered node by node. A scale-up domain is a set of GPUs joined by NVLink, xGMI, HCCS or UB; it may
 * span nodes (GB200 NVL72, CloudMatrix 384).
 */
#pragma once

#include "hw/device.h"
#include "sim/base/link-load.h"

typedef struct Cluster {
    gint extra_refs; /* beside the first; see cluster_ref() */
    Device *device;
    int64_t n_nodes, gpus_per_node;
    int64_t n_ranks;              /* n_nodes x gpus_per_node */
    int64_t domain_gpus;          /* GPUs of one scale-up domain */
    double scale_up_bytes_per_s;  /* per GPU, one direction, datasheet */
    double scale_out_bytes_per_s; /* per GPU, one direction (its NIC rail), datasheet */
} Cluster;

/* The members of a collective: n_ranks, `stride` ranks apart (0 = 1), of which per_domain share each scale-up domain. */
typedef struct CollGroup {
    int64_t n_ranks;
    int64_t per_domain;
    int64_t stride;
} CollGroup;

/* Levels of the network at which collectives can meet: the links of a LinkLoad. */
typedef enum NetLevel {
    NET_SCALE_UP, /* a GPU's port */
    NET_NIC,      /* its NIC, or its part of one */
    NET_LEAF,     /* uplinks of a leaf switch, or of all rails' leaves together */
    NET_POD,      /* uplinks of a pod */
    N_NET_LEVELS
} NetLevel;
G_STATIC_ASSERT((int)N_NET_LEVELS == (int)LINK_LOADS_MAX);

/*
 * What a collective takes. The load says which part of each level's busiest link it takes meanwhile: bytes over what the link
 * carries in that time, all groups of the kind alike. What several collectives on one network get of it is the share's to
 * say (sim/base/link-load.h).
 */
typedef struct CollPrice {
    SimTime ns; /* alone on the network */
    Evidence evidence;
    LinkLoad load;
} CollPrice;

typedef enum CollKind {
#define COLL(id, name) COLL_##id,
#include "hw/coll.def"
#undef COLL
    N_COLLS
} CollKind;

enum { CLUSTER_NODES_MAX = 1 << 24 };

/*
 * A cluster of a preset or a descriptor file. gpus_per_node 0 takes the descriptor's; fewer leave some of each node out, and
 * more are an error: how larger nodes are joined a descriptor has to say. Errors name the preset.
 */
Cluster *cluster_load(const char *preset_or_path, int64_t n_nodes, int64_t gpus_per_node, GError **error);
/* One more owner: the cluster lives until cluster_free() has been called once more, from whichever thread. */
Cluster *cluster_ref(Cluster *cluster);
void cluster_free(Cluster *cluster);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Cluster, cluster_free)

/* Scale-up domain of a rank. A domain inside a node never crosses it. */
int64_t cluster_domain(const Cluster *cluster, int64_t rank);

/*
 * Geometry of the group {first + i * stride, 0 <= i < n_ranks}: how many of them share a scale-up domain (the
 * largest number, if domains hold different numbers). Takes no longer for more ranks.
 */
CollGroup cluster_group(const Cluster *cluster, int64_t first, int64_t stride, int64_t n_ranks);

/* Name of a collective ("all_gather"). */
const char *coll_name(CollKind kind);

/* "scale-up", "NIC", "leaf", "pod". */
const char *net_level_name(NetLevel level);

/*
 * Duration of a collective alone on the network, kernel launch included, host cost not. bytes = the whole tensor per
 * rank: all-gather output, reduce-scatter input, all-reduce buffer, all-to-all send side (the part kept included),
 * send_recv message. Groups of one rank take no time.
 */
CollPrice coll_price(const Cluster *cluster, CollKind kind, const CollGroup *group, int64_t bytes);

/* The duration alone. */
SimTime coll_ns(const Cluster *cluster, CollKind kind, const CollGroup *group, int64_t bytes, Evidence *ret_evidence);

/*
 * What the busiest rank of an all-to-all with unequal parts moves. Inside its scale-up domain both directions share the
 * kernel's SMs, and each has the link's own rate: 25 against 75 % takes 3 to 6 % longer than even parts. So both count,
 * the mean of what a rank sends and receives there, and the larger of them.
 */
typedef struct CollExchange {
    int64_t domain_bytes;  /* sent to and received from other ranks of the domain, the mean */
    int64_t one_way_bytes; /* the same, whichever is more; 0: as much both ways */
    int64_t outside_bytes; /* to or from ranks outside, whichever is more */
    int64_t leaf_bytes, pod_bytes; /* what its NIC would have to move to take as long as the busiest uplink does */
    int64_t self_bytes;    /* what stays on the rank */
} CollExchange;

CollPrice coll_exchange_price(const Cluster *cluster, const CollGroup *group, const CollExchange *exchange);
SimTime coll_exchange_ns(const Cluster *cluster, const CollGroup *group, const CollExchange *exchange, Evidence *ret_evidence);

/*
 * The load of what takes `seconds` and moves bytes[level] over the busiest link of each: of a port or NIC as they are; of
 * uplinks what a NIC would have to move to take as long.
 */
LinkLoad coll_load(const Cluster *cluster, double seconds, const double *bytes);

/*
 * Uplinks under an exchange of even parts: fills leaf_bytes and pod_bytes when every rank of the group sends `part` bytes to
 * each other, and all groups below a switch do so.
 */
void coll_even_uplinks(const Cluster *cluster, const CollGroup *group, double part, CollExchange *exchange);

/* The same with as much sent as received inside the domain. */
SimTime coll_all_to_all_ns(const Cluster *cluster, const CollGroup *group, int64_t domain_bytes, int64_t outside_bytes,
                           int64_t self_bytes, Evidence *ret_evidence);
