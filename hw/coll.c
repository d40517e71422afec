#include "hw/coll.h"

#include <math.h>

#define COLL(id, name) extern const CollClass coll_##id;
#include "hw/coll.def"
#undef COLL

static const CollClass *const classes[N_COLLS] = {
#define COLL(id, name) [COLL_##id] = &coll_##id,
#include "hw/coll.def"
#undef COLL
};

/* Datasheet shares of a NIC that its protocol leaves: 8 x 400 Gb/s reach 92 to 97 % on long messages. */
static const double nic_fraction = 0.92;
/* One hop between GPUs of a domain beyond the first (flag written, seen, answered). */
static const double domain_hop_ns = 1500.0;

/*
 * Copying a byte of the own part against moving one over the link: an all-reduce of two ranks, which copies nothing,
 * moves 360 GB/s, an all-gather 285.
 */
static const double own_part_weight = 0.26;

const char *coll_name(CollKind kind)
{
    g_assert(kind < N_COLLS);
    return classes[kind]->name;
}

int64_t coll_n_domains(const CollGroup *group)
{
    return quantity_div_up(group->n_ranks, group->per_domain);
}

double coll_domain_seconds(const Cluster *cluster, LawKind law, int64_t n_hops, double moved)
{
    double seconds = law_link_seconds(&cluster->device->laws->fits[law], cluster->scale_up_bytes_per_s, moved);
    return seconds + (double)(n_hops - 1) * domain_hop_ns * 1e-9;
}

/*
 * Share of a NIC's rate that rings keep where they leave a leaf or a pod: a ring of each place in a node crosses its
 * uplinks once, whatever number of nodes it joins there.
 */
static double ring_frac(const Cluster *cluster, int64_t n_domains)
{
    const Device *device = cluster->device;
    double leaf = device->leaf_uplink_frac > 0.0 ? device->leaf_uplink_frac : 1.0;
    double pod = leaf * (device->pod_uplink_frac > 0.0 ? device->pod_uplink_frac : 1.0);
    int64_t in_leaf = device->nodes_per_leaf, in_pod = in_leaf * device->leaves_per_pod;
    double frac = in_leaf > 0 && n_domains > in_leaf ? fmin(1.0, (double)in_leaf * leaf) : 1.0;
    return in_pod > 0 && n_domains > in_pod ? fmin(frac, (double)in_pod * pod) : frac;
}

double coll_outside_seconds(const Cluster *cluster, int64_t n_hops, double moved)
{
    double latency = (double)n_hops * (double)cluster->device->scale_out_latency_ns * 1e-9;
    return latency + moved / (cluster->scale_out_bytes_per_s * nic_fraction);
}

double coll_gather_seconds(const Cluster *cluster, LawKind law, const CollGroup *group, double bytes)
{
    double n = (double)group->n_ranks;
    int64_t n_domains = coll_n_domains(group);
    double inside = 0.0, outside = 0.0;
    if (group->per_domain > 1) {
        /*
         * Besides what goes over the link a kernel copies the rank's own part. With two ranks, where laws are fitted,
         * both are equal; with more, the own part shrinks.
         */
        double moved = bytes * (n - 1.0) / n, own = law == LAW_all_reduce ? 0.0 : bytes / n;
        double weight = law == LAW_all_reduce ? 0.0 : own_part_weight;
        inside = coll_domain_seconds(cluster, law, group->n_ranks - 1, (moved + weight * own) / (1.0 + weight));
    }
    if (n_domains > 1) {
        double moved = bytes * (double)(n_domains - 1) / n;
        outside = coll_outside_seconds(cluster, n_domains - 1, moved / ring_frac(cluster, n_domains)) +
                  law_link_fixed_seconds(&cluster->device->laws->fits[law]);
    }
    return fmax(inside, outside);
}

SimTime coll_ns(const Cluster *cluster, CollKind kind, const CollGroup *group, int64_t bytes, Evidence *ret_evidence)
{
    g_assert(kind < N_COLLS && bytes >= 0);
    const CollClass *class = classes[kind];
    if (ret_evidence != NULL) {
        const LawFit *fit = &cluster->device->laws->fits[class->law];
        Evidence inside = law_evidence(fit, (double)bytes);
        *ret_evidence = group->n_ranks > 2 ? MAX(inside, EVIDENCE_DATASHEET) : inside;
    }
    if (group->n_ranks < 2) {
        return 0;
    }
    return quantity_ns(class->seconds(cluster, group, (double)bytes));
}

SimTime coll_exchange_ns(const Cluster *cluster, const CollGroup *group, const CollExchange *exchange, Evidence *ret_evidence)
{
    const Device *device = cluster->device;
    const LawFit *fit = &device->laws->fits[LAW_all_to_all];
    if (ret_evidence != NULL) {
        Evidence inside = law_evidence(fit, (double)(exchange->domain_bytes + exchange->outside_bytes + exchange->self_bytes));
        *ret_evidence = group->n_ranks > 2 ? MAX(inside, EVIDENCE_DATASHEET) : inside;
    }
    if (group->n_ranks < 2) {
        return 0;
    }
    double inside = coll_domain_seconds(cluster, LAW_all_to_all, 1, (double)exchange->domain_bytes);
    double one_way = exchange->one_way_bytes > exchange->domain_bytes
                         ? coll_domain_seconds(cluster, LAW_send_recv, 1, (double)exchange->one_way_bytes)
                         : 0.0;
    double outside = 0.0;
    if (coll_n_domains(group) > 1) {
        outside = coll_outside_seconds(cluster, 1, (double)exchange->outside_bytes) + law_link_fixed_seconds(fit);
    }
    double self = 2.0 * (double)exchange->self_bytes / device->hbm_bytes_per_s;
    return quantity_ns(fmax(fmax(inside, one_way), fmax(outside, self)));
}

SimTime coll_all_to_all_ns(const Cluster *cluster, const CollGroup *group, int64_t domain_bytes, int64_t outside_bytes,
                           int64_t self_bytes, Evidence *ret_evidence)
{
    CollExchange even = {.domain_bytes = domain_bytes, .outside_bytes = outside_bytes, .self_bytes = self_bytes};
    return coll_exchange_ns(cluster, group, &even, ret_evidence);
}
