/*
 * What the exchanges of a MoE layer cost: from the split matrix of its routing, by the way that rows travel.
 *
 * All members of a group wait for the busiest one, in each direction and at each level of the network.
 */
#include <math.h>

#include "hw/exchange.h"
#include "hw/topology.h"
#include "workloads/lower/lowering.h"

/* Traffic of a group in rows: what the busiest rank keeps, and sends or receives, whichever is more. */
typedef struct Traffic {
    int64_t sent, self;
    int64_t inside, outside; /* the scale-up domain */
    int64_t inside_mean;     /* sent and received there, the mean */
    int64_t leaf, pod;       /* what its NIC would have to move to take as long as the busiest uplink */
} Traffic;

/* An EP group on the machine: n ranks, of which `per` share each domain, and rows from each rank to each. */
typedef struct Exchange {
    const Plan *plan;
    int64_t n, per;
    int64_t even;         /* rows from any rank to any, where matrix is NULL */
    const int64_t *matrix; /* [n * n] */
    ArrivalSpec arrival;
} Exchange;

static int64_t rows_between(const Exchange *e, int64_t source, int64_t dest)
{
    return e->matrix != NULL ? e->matrix[source * e->n + dest] : e->even;
}

static gboolean same_domain(const Exchange *e, int64_t a, int64_t b)
{
    return a / e->per == b / e->per;
}

/* Straight from source to target. */
static Traffic direct_traffic(const Exchange *e)
{
    Traffic busiest = {0};
    if (e->matrix == NULL) { /* all ranks alike; domains are whole */
        int64_t inside = (e->per - 1) * e->even;
        return (Traffic){e->n * e->even, e->even, inside, (e->n - e->per) * e->even, inside};
    }
    for (int64_t r = 0; r < e->n; r++) {
        int64_t moved[2][2] = {{0, 0}, {0, 0}}; /* [sent, received][inside, outside the domain] */
        for (int64_t peer = 0; peer < e->n; peer++) {
            gboolean outside = !same_domain(e, peer, r);
            moved[0][outside] += peer != r ? rows_between(e, r, peer) : 0;
            moved[1][outside] += peer != r ? rows_between(e, peer, r) : 0;
        }
        busiest.inside = MAX(busiest.inside, MAX(moved[0][0], moved[1][0]));
        busiest.inside_mean = MAX(busiest.inside_mean, (moved[0][0] + moved[1][0] + 1) / 2);
        busiest.outside = MAX(busiest.outside, MAX(moved[0][1], moved[1][1]));
        busiest.self = MAX(busiest.self, rows_between(e, r, r));
        busiest.sent = MAX(busiest.sent, moved[0][0] + moved[0][1] + rows_between(e, r, r));
    }
    return busiest;
}

/*
 * By way of the rank of the own domain that stands where the target stands in its own: first all hand their rows on inside,
 * then each moves what its domain has for the ranks of its place.
 */
static Traffic hierarchical_traffic(const Exchange *e)
{
    Traffic busiest = direct_traffic(e);
    g_autofree int64_t *moved = g_new0(int64_t, 4 * e->n); /* by rank: handed on, got; over the NIC out, in */
    for (int64_t source = 0; source < e->n; source++) {
        for (int64_t dest = 0; dest < e->n; dest++) {
            int64_t rows = rows_between(e, source, dest), relay = source / e->per * e->per + dest % e->per;
            if (relay != source) {
                moved[4 * source] += rows;
                moved[4 * relay + 1] += rows;
            }
            if (relay != dest) {
                moved[4 * relay + 2] += rows;
                moved[4 * dest + 3] += rows;
            }
        }
    }
    busiest.inside = busiest.inside_mean = busiest.outside = 0;
    for (int64_t r = 0; r < e->n; r++) {
        busiest.inside = MAX(busiest.inside, MAX(moved[4 * r], moved[4 * r + 1]));
        busiest.inside_mean = MAX(busiest.inside_mean, (moved[4 * r] + moved[4 * r + 1] + 1) / 2);
        busiest.outside = MAX(busiest.outside, MAX(moved[4 * r + 2], moved[4 * r + 3]));
    }
    return busiest;
}

/* Tokens of a source for a domain, each once. */
static int64_t tokens_to_domain(const Exchange *e, const int64_t *splits, int64_t even, int64_t source, int64_t domain)
{
    int64_t rows = 0;
    for (int64_t dest = domain * e->per; dest < (domain + 1) * e->per; dest++) {
        rows += splits != NULL ? splits[source * e->n + dest] : even;
    }
    return arrivals_expected(&e->arrival, rows, e->n / e->per);
}

/*
 * Each token once to every domain, over the NIC to the rank that stands where its source stands; from there once to every
 * rank of the domain. e->matrix: tokens that arrive; splits: rows of choices.
 */
static Traffic token_traffic(const Exchange *e, const int64_t *splits, int64_t even)
{
    Traffic busiest = {0};
    int64_t n_domains = e->n / e->per;
    g_autofree int64_t *moved = g_new0(int64_t, 4 * e->n); /* by rank: inside out, in; NIC out, in */
    for (int64_t source = 0; source < e->n; source++) {
        for (int64_t domain = 0; domain < n_domains; domain++) {
            int64_t relay = domain * e->per + source % e->per;
            for (int64_t dest = domain * e->per; dest < (domain + 1) * e->per; dest++) {
                moved[4 * relay] += dest != relay ? rows_between(e, source, dest) : 0;
                moved[4 * dest + 1] += dest != relay ? rows_between(e, source, dest) : 0;
            }
            if (relay != source) {
                int64_t tokens = tokens_to_domain(e, splits, even, source, domain);
                moved[4 * source + 2] += tokens;
                moved[4 * relay + 3] += tokens;
            }
        }
    }
    for (int64_t r = 0; r < e->n; r++) {
        int64_t sent = rows_between(e, r, r);
        busiest.inside = MAX(busiest.inside, MAX(moved[4 * r], moved[4 * r + 1]));
        busiest.outside = MAX(busiest.outside, MAX(moved[4 * r + 2], moved[4 * r + 3]));
        for (int64_t peer = 0; peer < e->n; peer++) {
            sent += peer != r ? rows_between(e, r, peer) : 0;
        }
        busiest.sent = MAX(busiest.sent, sent);
    }
    return busiest;
}

/* Rows, or tokens, from a source to ranks of a domain that cross the fabric. */
static int64_t rows_to_domain(const Exchange *e, const int64_t *splits, int64_t even, int64_t source, int64_t domain)
{
    int64_t rows = 0;
    if (plan_sends_tokens(e->plan)) {
        return tokens_to_domain(e, splits, even, source, domain);
    }
    for (int64_t dest = domain * e->per; dest < (domain + 1) * e->per; dest++) {
        rows += rows_between(e, source, dest);
    }
    return rows;
}

/*
 * Rows over the busiest uplink of a leaf, or of a pod, over the uplink's capacity in NICs: what a NIC would have to move to
 * take as long. Ranks of other groups below the same switch do as this group's do. 0 where no uplink can fill.
 */
static double uplink_rows(const Exchange *e, const int64_t *splits, int64_t even, gboolean pods)
{
    const Cluster *cluster = e->plan->cluster;
    int64_t gpus = cluster->gpus_per_node, n_nodes = quantity_div_up(e->n, gpus);
    Topology topology;
    topology_init(&topology, cluster);
    if (pods ? !topology.pod_binds : !topology.leaf_binds) {
        return 0.0;
    }
    int64_t below = gpus * (pods ? topology.nodes_per_pod : topology.nodes_per_leaf);
    int64_t n_switches = (n_nodes - 1) / MAX(below / gpus, 1) + 1;
    g_autofree double *moved = g_new0(double, 3 * n_switches); /* up, down, ranks of the group */
    for (int64_t source = 0; source < e->n; source++) {
        int64_t from = source / below;
        moved[3 * from + 2] += 1.0;
        for (int64_t domain = 0; domain < e->n / e->per; domain++) {
            int64_t to = domain * e->per / below;
            double rows = from != to ? (double)rows_to_domain(e, splits, even, source, domain) : 0.0;
            moved[3 * from] += rows;
            moved[3 * to + 1] += rows;
        }
    }
    double most = 0.0, nics = topology.capacity[pods ? TOPOLOGY_POD_UP : TOPOLOGY_LEAF_UP] / cluster->scale_out_bytes_per_s;
    nics *= topology.rails && !pods ? (double)topology.nics_per_node : 1.0; /* a leaf a rail: all of them together */
    for (int64_t s = 0; s < n_switches; s++) {
        most = fmax(most, fmax(moved[3 * s], moved[3 * s + 1]) * (double)below / fmax(moved[3 * s + 2], 1.0));
    }
    return most / nics;
}

/* What a group's exchange moves: bytes of the busiest rank, and what its NIC would have to move to take as long as uplinks do. */
static CollExchange exchange_of(const Traffic *traffic, int64_t row)
{
    return (CollExchange){.domain_bytes = traffic->inside_mean * row,
                          .one_way_bytes = traffic->inside * row,
                          .outside_bytes = traffic->outside * row,
                          .leaf_bytes = traffic->leaf * row,
                          .pod_bytes = traffic->pod * row,
                          .self_bytes = traffic->self * row};
}

/* A library that sends each token once. */
static void price_stack(const Exchange *e, const CollExchange *all, AllToAll *ret)
{
    static const char *const names[N_PLAN_DISPATCHES] = {[PLAN_DISPATCH_DEEPEP] = "deepep", [PLAN_DISPATCH_HYBRIDEP] = "hybridep"};
    g_autoptr(ExchangeStack) stack = exchange_stack_load(names[e->plan->moe.dispatch], NULL);
    g_assert(stack != NULL);
    int64_t outside = MAX(all->outside_bytes, MAX(all->leaf_bytes, all->pod_bytes));
    ExchangeBytes bytes = {.inside = (double)all->one_way_bytes, .outside = (double)outside};
    double levels[N_NET_LEVELS] = {[NET_SCALE_UP] = (double)all->one_way_bytes,
                                   [NET_NIC] = (double)all->outside_bytes,
                                   [NET_LEAF] = (double)all->leaf_bytes,
                                   [NET_POD] = (double)all->pod_bytes};
    for (int is_combine = 0; is_combine < 2; is_combine++) {
        double seconds = exchange_seconds(e->plan->cluster, stack, &bytes, is_combine);
        CollPrice *price = is_combine ? &ret->combine : &ret->dispatch;
        *price = (CollPrice){quantity_ns(seconds), EVIDENCE_FITTED, coll_load(e->plan->cluster, seconds, levels)};
    }
}

static void price_gather(const Exchange *e, const CollGroup *group, int64_t row, AllToAll *ret)
{
    int64_t bytes = e->n * e->arrival.tokens * row;
    ret->dispatch = coll_price(e->plan->cluster, COLL_all_gather, group, bytes);
    ret->combine = coll_price(e->plan->cluster, COLL_reduce_scatter, group, bytes);
    ret->combine.evidence = ret->dispatch.evidence;
    ret->dispatch_coll = COLL_all_gather;
    ret->combine_coll = COLL_reduce_scatter;
}

/* One step after the other: rows inside the domains, then between them. */
static CollPrice hierarchical_price(const Exchange *e, const CollExchange *all)
{
    const Cluster *cluster = e->plan->cluster;
    CollGroup inside = {e->per, e->per, 1}, across = {e->n / e->per, 1, e->per};
    CollExchange near = *all, far = *all;
    near.outside_bytes = near.leaf_bytes = near.pod_bytes = 0;
    far.domain_bytes = far.one_way_bytes = far.self_bytes = 0;
    CollPrice price = coll_exchange_price(cluster, &inside, &near);
    price.ns += coll_exchange_price(cluster, &across, &far).ns;
    double levels[N_NET_LEVELS] = {[NET_SCALE_UP] = (double)MAX(all->domain_bytes, all->one_way_bytes),
                                   [NET_NIC] = (double)all->outside_bytes,
                                   [NET_LEAF] = (double)all->leaf_bytes,
                                   [NET_POD] = (double)all->pod_bytes};
    price.load = coll_load(cluster, (double)price.ns * 1e-9, levels);
    return price;
}

/* Weights go along with their tokens: no latency of their own, k numbers beside a row of l. */
static CollPrice weights_price(const Plan *plan, const AllToAll *exchange, int64_t row)
{
    int64_t weights = dtype_bytes(DTYPE_FP32, plan->model->top_k);
    CollPrice price = exchange->dispatch;
    price.ns = (SimTime)((double)price.ns * (double)weights / (double)MAX(row, 1));
    return price;
}

/* What the busiest rank, and the busiest uplinks, carry. */
static Traffic traffic_of(const Exchange *e, const int64_t *splits, int64_t even)
{
    Traffic traffic = plan_sends_tokens(e->plan) ? token_traffic(e, splits, even)
                      : e->plan->moe.dispatch == PLAN_DISPATCH_HIERARCHICAL ? hierarchical_traffic(e)
                                                                              : direct_traffic(e);
    traffic.leaf = (int64_t)ceil(uplink_rows(e, splits, even, FALSE));
    traffic.pod = (int64_t)ceil(uplink_rows(e, splits, even, TRUE));
    return traffic;
}

static CollPrice rows_price(const Exchange *e, const CollGroup *group, const CollExchange *all)
{
    return e->plan->moe.dispatch == PLAN_DISPATCH_HIERARCHICAL ? hierarchical_price(e, all)
                                                                : coll_exchange_price(e->plan->cluster, group, all);
}

static Exchange exchange_on(const Plan *plan, const CollGroup *group)
{
    int64_t per = plan->ep % group->per_domain == 0 ? group->per_domain : 1;
    return (Exchange){.plan = plan, .n = plan->ep, .per = per, .arrival = arrivals_spec(plan)};
}

CollPrice lowering_price_rows(const Plan *plan, const int64_t *rows, int64_t row_bytes)
{
    CollGroup group = cluster_group(plan->cluster, 0, 1, plan->ep);
    Exchange e = exchange_on(plan, &group);
    e.matrix = rows;
    Traffic traffic = traffic_of(&e, rows, 0);
    CollExchange all = exchange_of(&traffic, row_bytes);
    return rows_price(&e, &group, &all);
}

AllToAll lowering_price_exchange(const Lowering *lowering, int table, int64_t chunk)
{
    const Plan *plan = lowering->plan;
    const Model *model = plan->model;
    CollGroup group = cluster_group(plan->cluster, 0, 1, plan->ep);
    Exchange e = exchange_on(plan, &group);
    const int64_t *splits = lowering->routing != NULL ? routing_chunk_splits(lowering->routing, table, chunk) : NULL;
    e.arrival.tokens = plan_chunk_tokens(plan, chunk);
    int64_t even = e.arrival.tokens * model->top_k / plan->ep;
    int64_t row = dtype_bytes(plan->compute, model->latent_width > 0 ? model->latent_width : model->hidden);
    AllToAll exchange = {.dispatch_coll = COLL_all_to_all, .combine_coll = COLL_all_to_all};
    gboolean tokens = plan_sends_tokens(plan);
    e.matrix = splits == NULL ? NULL : tokens ? routing_chunk_arrivals(lowering->routing, table, chunk) : splits;
    e.even = tokens ? arrivals_expected(&e.arrival, even, e.n) : even;
    Traffic traffic = traffic_of(&e, splits, even);
    exchange.bytes = traffic.sent * row;
    CollExchange all = exchange_of(&traffic, row);
    if (plan->moe.dispatch == PLAN_DISPATCH_ALL_GATHER) {
        price_gather(&e, &group, row, &exchange);
    } else if (tokens) {
        price_stack(&e, &all, &exchange);
    } else {
        exchange.dispatch = exchange.combine = rows_price(&e, &group, &all);
    }
    exchange.weights = weights_price(plan, &exchange, row);
    exchange.weights_bytes = traffic.sent * dtype_bytes(DTYPE_FP32, model->top_k);
    exchange.counts_bytes = dtype_bytes(DTYPE_INT64, plan_expert_slots(plan)) * plan->moe.overlap_chunks; /* those of all chunks */
    exchange.counts = coll_price(plan->cluster, COLL_all_to_all, &group, exchange.counts_bytes);
    exchange.counts.evidence = exchange.dispatch.evidence;
    return exchange;
}
