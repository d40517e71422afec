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

const char *net_level_name(NetLevel level)
{
    static const char *const names[N_NET_LEVELS] = {"scale-up", "NIC", "leaf", "pod"};
    return names[level];
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

/* Members of a group below one switch that holds so many ranks, at least 1; all of them when it holds the group. */
static double members_below(const CollGroup *group, int64_t ranks_below)
{
    int64_t stride = MAX(group->stride, 1);
    int64_t span = (group->n_ranks - 1) * stride + 1;
    return ranks_below <= 0 || span <= ranks_below ? (double)group->n_ranks : fmax(1.0, (double)(ranks_below / stride));
}

/* Of each leaf, of each pod: ranks below it (0 = all), and its uplinks over their NICs. */
typedef struct Switch {
    int64_t n_ranks;
    double frac;
} Switch;

static Switch switch_at(const Cluster *cluster, NetLevel level)
{
    const Device *device = cluster->device;
    double leaf = device->leaf_uplink_frac > 0.0 ? device->leaf_uplink_frac : 1.0;
    double pod = leaf * (device->pod_uplink_frac > 0.0 ? device->pod_uplink_frac : 1.0);
    int64_t in_leaf = device->nodes_per_leaf * cluster->gpus_per_node;
    return level == NET_LEAF ? (Switch){in_leaf, leaf} : (Switch){in_leaf * device->leaves_per_pod, pod};
}

/*
 * Bytes over the NIC as the uplinks of a switch feel them: a ring goes out of it once, whatever number of domains it joins
 * there, and all rings below it do so.
 */
static double ring_uplink(const Cluster *cluster, NetLevel level, const CollGroup *group, double moved)
{
    Switch of = switch_at(cluster, level);
    double members = members_below(group, of.n_ranks), domains = fmax(1.0, members / (double)group->per_domain);
    return members < (double)group->n_ranks ? moved / (domains * of.frac) : 0.0;
}

double coll_outside_seconds(const Cluster *cluster, int64_t n_hops, double moved)
{
    double latency = (double)n_hops * (double)cluster->device->scale_out_latency_ns * 1e-9;
    return latency + moved / (cluster->scale_out_bytes_per_s * nic_fraction);
}

CollTime coll_gather_time(const Cluster *cluster, LawKind law, const CollGroup *group, double bytes)
{
    double n = (double)group->n_ranks;
    int64_t n_domains = coll_n_domains(group), rounds = law == LAW_all_reduce ? 2 : 1; /* there, and back */
    CollTime time = {0};
    if (group->per_domain > 1) {
        /*
         * Besides what goes over the link a kernel copies the rank's own part. With two ranks, where laws are fitted,
         * both are equal; with more, the own part shrinks.
         */
        double moved = bytes * (n - 1.0) / n, own = law == LAW_all_reduce ? 0.0 : bytes / n;
        double weight = law == LAW_all_reduce ? 0.0 : own_part_weight;
        time.bytes[NET_SCALE_UP] = moved;
        time.seconds = coll_domain_seconds(cluster, law, rounds * (group->n_ranks - 1), (moved + weight * own) / (1.0 + weight));
    }
    if (n_domains > 1) {
        double moved = bytes * (double)(n_domains - 1) / n;
        double leaf = ring_uplink(cluster, NET_LEAF, group, moved), pod = ring_uplink(cluster, NET_POD, group, moved);
        double outside = coll_outside_seconds(cluster, rounds * (n_domains - 1), fmax(moved, fmax(leaf, pod))) +
                         law_link_fixed_seconds(&cluster->device->laws->fits[law]);
        time.bytes[NET_NIC] = moved;
        time.bytes[NET_LEAF] = leaf;
        time.bytes[NET_POD] = pod;
        time.seconds = fmax(time.seconds, outside);
    }
    return time;
}

/* What a port carries at most of collectives, several or one exchange: bytes per second. */
static double port_rate(const Cluster *cluster)
{
    double shared = cluster->device->scale_up_shared_frac;
    return cluster->scale_up_bytes_per_s * (shared > 0.0 ? shared : 1.0);
}

LinkLoad coll_load(const Cluster *cluster, double seconds, const double *bytes)
{
    double parts[N_NET_LEVELS];
    for (int level = 0; level < N_NET_LEVELS; level++) {
        double rate = level == NET_SCALE_UP ? port_rate(cluster) : cluster->scale_out_bytes_per_s * nic_fraction;
        parts[level] = bytes[level] > 0.0 && seconds > 0.0 ? bytes[level] / (rate * seconds) : 0.0;
    }
    return link_load_of(parts);
}

static CollPrice price_of(const Cluster *cluster, LawKind law, const CollGroup *group, double size, const CollTime *time)
{
    Evidence inside = law_evidence(&cluster->device->laws->fits[law], size);
    CollPrice price = {.evidence = group->n_ranks > 2 ? MAX(inside, EVIDENCE_DATASHEET) : inside};
    if (group->n_ranks > 1) {
        price.ns = quantity_ns(time->seconds);
        price.load = coll_load(cluster, time->seconds, time->bytes);
    }
    return price;
}

CollPrice coll_price(const Cluster *cluster, CollKind kind, const CollGroup *group, int64_t bytes)
{
    g_assert(kind < N_COLLS && bytes >= 0);
    CollTime time = group->n_ranks > 1 ? classes[kind]->time(cluster, group, (double)bytes) : (CollTime){0};
    return price_of(cluster, classes[kind]->law, group, (double)bytes, &time);
}

SimTime coll_ns(const Cluster *cluster, CollKind kind, const CollGroup *group, int64_t bytes, Evidence *ret_evidence)
{
    CollPrice price = coll_price(cluster, kind, group, bytes);
    if (ret_evidence != NULL) {
        *ret_evidence = price.evidence;
    }
    return price.ns;
}

CollTime coll_exchange_time(const Cluster *cluster, const CollGroup *group, const CollExchange *exchange)
{
    const Device *device = cluster->device;
    double domain_bytes = (double)exchange->domain_bytes, one_way_bytes = (double)exchange->one_way_bytes;
    double inside = coll_domain_seconds(cluster, LAW_all_to_all, 1, domain_bytes);
    double one_way = one_way_bytes > domain_bytes ? coll_domain_seconds(cluster, LAW_send_recv, 1, one_way_bytes) : 0.0;
    double self = 2.0 * (double)exchange->self_bytes / device->hbm_bytes_per_s;
    CollTime time = {fmax(fmax(inside, one_way), self), {[NET_SCALE_UP] = fmax(domain_bytes, one_way_bytes)}};
    /* beyond 1 GiB, where the law was not fitted, it goes on towards the whole link both ways: measured exchanges do not */
    time.seconds = fmax(time.seconds, domain_bytes / port_rate(cluster));
    if (coll_n_domains(group) > 1) {
        int64_t busiest = MAX(exchange->outside_bytes, MAX(exchange->leaf_bytes, exchange->pod_bytes));
        double fixed = law_link_fixed_seconds(&device->laws->fits[LAW_all_to_all]);
        time.bytes[NET_NIC] = (double)exchange->outside_bytes;
        time.bytes[NET_LEAF] = (double)exchange->leaf_bytes;
        time.bytes[NET_POD] = (double)exchange->pod_bytes;
        time.seconds = fmax(time.seconds, coll_outside_seconds(cluster, 1, (double)busiest) + fixed);
    }
    return time;
}

void coll_even_uplinks(const Cluster *cluster, const CollGroup *group, double part, CollExchange *exchange)
{
    for (int level = NET_LEAF; level <= NET_POD; level++) {
        Switch of = switch_at(cluster, (NetLevel)level);
        double beyond = (double)group->n_ranks - members_below(group, of.n_ranks);
        int64_t bytes = (int64_t)(part * beyond / of.frac);
        *(level == NET_LEAF ? &exchange->leaf_bytes : &exchange->pod_bytes) = bytes;
    }
}

CollTime coll_even_exchange_time(const Cluster *cluster, const CollGroup *group, double part)
{
    CollExchange even = {.domain_bytes = (int64_t)(part * (double)(group->per_domain - 1)),
                         .outside_bytes = (int64_t)(part * (double)(group->n_ranks - group->per_domain)),
                         .self_bytes = (int64_t)part};
    coll_even_uplinks(cluster, group, part, &even);
    return coll_exchange_time(cluster, group, &even);
}

CollPrice coll_exchange_price(const Cluster *cluster, const CollGroup *group, const CollExchange *exchange)
{
    CollTime time = group->n_ranks > 1 ? coll_exchange_time(cluster, group, exchange) : (CollTime){0};
    double size = (double)(exchange->domain_bytes + exchange->outside_bytes + exchange->self_bytes);
    return price_of(cluster, LAW_all_to_all, group, size, &time);
}

SimTime coll_exchange_ns(const Cluster *cluster, const CollGroup *group, const CollExchange *exchange, Evidence *ret_evidence)
{
    CollPrice price = coll_exchange_price(cluster, group, exchange);
    if (ret_evidence != NULL) {
        *ret_evidence = price.evidence;
    }
    return price.ns;
}

SimTime coll_all_to_all_ns(const Cluster *cluster, const CollGroup *group, int64_t domain_bytes, int64_t outside_bytes,
                           int64_t self_bytes, Evidence *ret_evidence)
{
    CollExchange even = {.domain_bytes = domain_bytes, .outside_bytes = outside_bytes, .self_bytes = self_bytes};
    return coll_exchange_ns(cluster, group, &even, ret_evidence);
}
