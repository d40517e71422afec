/* All-reduce as a ring: a reduce-scatter and an all-gather, so every byte travels twice. bytes = the buffer. */
#include "hw/coll.h"

static CollTime all_reduce_time(const Cluster *cluster, const CollGroup *group, double bytes)
{
    return coll_gather_time(cluster, LAW_all_reduce, group, 2.0 * bytes);
}

const CollClass coll_all_reduce = {.name = "all_reduce", .law = LAW_all_reduce, .time = all_reduce_time};
