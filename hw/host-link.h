/*
 * Host link: what copies between a GPU's HBM and the host's DDR get of the link while others move, too.
 *
 * timing_host_copy_ns() prices one copy in one direction, alone on its link, through pinned memory. Three things make it
 * slower, each a share of that speed:
 *  - the other direction: a link is full duplex but for a few per cent (measured), and both directions meet in the DDR;
 *  - the DDR: all GPUs of a host copy at the same time, and each gets its part of the host's memory bandwidth, as of its
 *    memory. A host is a node, or where each processor has its GPUs on a link of its own (Grace), one of these;
 *  - the NIC: where it hangs on the GPU's own PCIe switch, traffic between nodes crosses the same link. Both get what
 *    max-min fair sharing gives them. A C2C or UB link has no NIC on it.
 *
 * Copies that yield leave that traffic alone: they are cut into pieces of 16 MiB, which a thread of the host issues only while no
 * traffic between nodes is under way on the GPU. A piece that runs when a transfer starts is finished, 0.3 ms beside one of 5 to
 * 30 ms; taken as a share of 2 % of either (assumed, not measured).
 */
#pragma once

#include "hw/cluster.h"

typedef struct HostLink {
    double bytes_per_s; /* one direction, long copies, alone */
    double alone_rate;  /* share of it left when every GPU of the node copies in one direction (0 to 1] */
    double duplex_rate; /* the same of each direction when both move */
    double net_rate;    /* share of a copy's rate left beside traffic between nodes; 1 = that takes another way */
    double rate_of_net; /* share of that traffic's rate left beside copies */
    int64_t bytes;      /* DDR per GPU in use; 0 = unknown */
    gboolean pooled;    /* DDR of the whole super-node serves every GPU: what counts is the mean over ranks */
} HostLink;

/*
 * Duration of an optimizer step on the host for one GPU's shard, all GPUs of the node at once: `bytes` of DDR traffic, read
 * and written, gradients coming in and parameters going out included. 0 when the device does not say how fast that is.
 */
SimTime host_update_ns(const Cluster *cluster, int64_t bytes);

/* The link of each GPU of a cluster whose nodes all copy at once; yields: copies wait for traffic between nodes. */
HostLink host_link_of(const Cluster *cluster, gboolean yields);
