/* All-to-all in equal parts. bytes = the send side, the part that stays included. */
#include "hw/coll.h"

static CollTime all_to_all_time(const Cluster *cluster, const CollGroup *group, double bytes)
{
    return coll_even_exchange_time(cluster, group, bytes / (double)group->n_ranks);
}

const CollClass coll_all_to_all = {.name = "all_to_all", .law = LAW_all_to_all, .time = all_to_all_time};
