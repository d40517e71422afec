/* One message from one rank to another; over the NIC when they share no domain. bytes = the message. */
#include "hw/coll.h"

static CollTime send_recv_time(const Cluster *cluster, const CollGroup *group, double bytes)
{
    if (group->per_domain > 1) {
        return (CollTime){coll_domain_seconds(cluster, LAW_send_recv, 1, bytes), {[NET_SCALE_UP] = bytes}};
    }
    double fixed = law_link_fixed_seconds(&cluster->device->laws->fits[LAW_send_recv]);
    return (CollTime){coll_outside_seconds(cluster, 1, bytes) + fixed, {[NET_NIC] = bytes}};
}

const CollClass coll_send_recv = {.name = "send_recv", .law = LAW_send_recv, .time = send_recv_time};
