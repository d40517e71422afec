/* One message from one rank to another; over the NIC when they share no domain. bytes = the message. */
#include "hw/coll.h"

static double send_recv_seconds(const Cluster *cluster, const CollGroup *group, double bytes)
{
    if (group->per_domain > 1) {
        return coll_domain_seconds(cluster, LAW_send_recv, 1, bytes);
    }
    return coll_outside_seconds(cluster, 1, bytes) +
           law_link_fixed_seconds(&cluster->device->laws->fits[LAW_send_recv]);
}

const CollClass coll_send_recv = {.name = "send_recv", .law = LAW_send_recv, .seconds = send_recv_seconds};
