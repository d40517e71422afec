/*
 * Transfers: many messages between the ranks of a cluster, and when each ends, at max-min fair rates.
 *
 * A transfer whose links are its own from start to end takes bytes over the least capacity: the closed form, no
 * simulation. All others are flows (sim/des/flow-net). Both say the same; which one was used is recorded.
 */
#pragma once

#include "hw/topology.h"

typedef struct Transfer {
    int64_t from, to; /* ranks, or topology_host() */
    double bytes, start_ns;
    double end_ns;        /* filled: latency left out */
    TopologyLink slowest; /* filled: the link that bounds it; alone, that of the least capacity on its way */
    gboolean is_shared;   /* filled: a flow */
} Transfer;

typedef struct TransfersSummary {
    double last_end_ns;
    size_t n_closed, n_flows;
    TopologyLink busiest;       /* with the longest time of bytes over capacity; valid if any transfer has bytes */
    double busiest_ns;          /* that time: no schedule is faster when all start at once */
    uint64_t n_solves;
} TransfersSummary;

/*
 * Runs n transfers together. ret_summary may be NULL. FALSE with an error that names the ends, and the index of the
 * transfer that it is about in *ret_bad, when one has no path.
 */
gboolean transfers_run(const Topology *topology, Transfer *transfers, size_t n, TransfersSummary *ret_summary,
                       size_t *ret_bad, GError **error);
