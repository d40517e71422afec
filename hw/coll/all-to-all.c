/* All-to-all in equal parts. bytes = the send side, the part that stays included. */
#include "hw/coll.h"

static double all_to_all_seconds(const Cluster *cluster, const CollGroup *group, double bytes)
{
    double part = bytes / (double)group->n_ranks;
    int64_t domain_bytes = (int64_t)(part * (double)(group->per_domain - 1));
    int64_t outside_bytes = (int64_t)(part * (double)(group->n_ranks - group->per_domain));
    return (double)coll_all_to_all_ns(cluster, group, domain_bytes, outside_bytes, (int64_t)part, NULL) * 1e-9;
}

const CollClass coll_all_to_all = {.name = "all_to_all", .law = LAW_all_to_all, .seconds = all_to_all_seconds};
