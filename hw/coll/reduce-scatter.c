/* Reduce-scatter: every rank ends with the sum of its part. bytes = the whole input. */
#include "hw/coll.h"

static CollTime reduce_scatter_time(const Cluster *cluster, const CollGroup *group, double bytes)
{
    return coll_gather_time(cluster, LAW_reduce_scatter, group, bytes);
}

const CollClass coll_reduce_scatter = {
    .name = "reduce_scatter", .law = LAW_reduce_scatter, .time = reduce_scatter_time};
