/* All-gather: every rank ends with all parts. bytes = the whole output. */
#include "hw/coll.h"

static CollTime all_gather_time(const Cluster *cluster, const CollGroup *group, double bytes)
{
    return coll_gather_time(cluster, LAW_all_gather, group, bytes);
}

const CollClass coll_all_gather = {.name = "all_gather", .law = LAW_all_gather, .time = all_gather_time};
