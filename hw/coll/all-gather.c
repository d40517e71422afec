/* All-gather: every rank ends with all parts. bytes = the whole output. */
#include "hw/coll.h"

static double all_gather_seconds(const Cluster *cluster, const CollGroup *group, double bytes)
{
    return coll_gather_seconds(cluster, LAW_all_gather, group, bytes);
}

const CollClass coll_all_gather = {.name = "all_gather", .law = LAW_all_gather, .seconds = all_gather_seconds};
