#include "hw/host-link.h"

#include "hw/timing.h"
#include "sim/base/quantity.h"

/* Long enough that what a copy costs beside its bytes does not count. */
static const int64_t LONG_COPY_BYTES = (int64_t)1 << 30;

/* What copies that yield still get beside traffic between nodes, and what that loses. */
static const double YIELDED_RATE = 0.02;

/* How much more of its host a GPU has than beside all that share it: as many of them are used as the node has in use. */
static double share_of_host(const Cluster *cluster)
{
    const Device *device = cluster->device;
    int64_t all = MAX(1, device->gpus_per_host > 0 ? device->gpus_per_host : device->gpus_per_node);
    return (double)all / (double)MAX(1, MIN(cluster->gpus_per_node, all));
}

HostLink host_link_of(const Cluster *cluster, gboolean yields)
{
    const Device *device = cluster->device;
    double seconds = (double)timing_host_copy_ns(device, LONG_COPY_BYTES, NULL) * 1e-9;
    HostLink link = {.bytes_per_s = (double)LONG_COPY_BYTES / seconds,
                     .alone_rate = 1,
                     .duplex_rate = device->host_duplex_rate > 0 ? device->host_duplex_rate : 1,
                     .net_rate = 1,
                     .rate_of_net = 1,
                     .bytes = (int64_t)((double)device->host_bytes * share_of_host(cluster)),
                     .pooled = device->unified_memory};
    if (device->host_memory_bytes_per_s > 0) {
        double part = device->host_memory_bytes_per_s * share_of_host(cluster);
        link.alone_rate = MIN(link.alone_rate, part / link.bytes_per_s);
        link.duplex_rate = MIN(link.duplex_rate, part / 2 / link.bytes_per_s);
    }
    if (device->nic_on_host_link && cluster->scale_out_bytes_per_s > 0) {
        double nic = MIN(cluster->scale_out_bytes_per_s, device->host_link_bytes_per_s);
        double fair = MAX(link.bytes_per_s / 2, link.bytes_per_s - nic);
        link.net_rate = yields ? YIELDED_RATE : fair / link.bytes_per_s;
        link.rate_of_net = yields ? 1 - YIELDED_RATE : MIN(1, (link.bytes_per_s - fair) / nic);
    }
    return link;
}

SimTime host_update_ns(const Cluster *cluster, int64_t bytes)
{
    const Device *device = cluster->device;
    double rate = device->host_update_bytes_per_s;
    if (rate <= 0) {
        return 0;
    }
    if (device->host_memory_bytes_per_s > 0) {
        rate = MIN(rate, device->host_memory_bytes_per_s * share_of_host(cluster));
    }
    return quantity_ns((double)bytes / rate);
}
