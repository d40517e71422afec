#include "workloads/plan/routing.h"

#include <math.h>
#include <string.h>

#include "workloads/plan/router-load.h"
#include "workloads/plan/routing-chunks.h"
#include "workloads/plan/routing-draw.h"
#include "workloads/plan/routing-file.h"

/* Loads of the layers that share them. */
typedef struct RoutingTable {
    int64_t *tokens;    /* [source][expert], kept */
    int64_t *slot_rows; /* [slots]: what the experts compute */
    int64_t *splits;    /* [source][dest] */
    int64_t *arrivals;  /* [source][dest]: tokens, each once */
    int64_t *chunk_rows; /* [rank][chunk][local slot], or NULL: there are no chunks */
    int64_t *chunk_splits, *chunk_arrivals; /* [chunk][source][dest] */
    int64_t capacity, n_routed, n_dropped;
    Placement *placement; /* or NULL */
} RoutingTable;

struct Routing {
    RoutingSpec spec; /* what it borrows is not read any more */
    int64_t slots;
    int n_tables;
    RoutingTable *tables;
    int *table_of_layer;
};

RoutingSpec routing_spec(const Plan *plan, int64_t tokens, int64_t sequences)
{
    const Model *model = plan->model;
    CollGroup group = cluster_group(plan->cluster, 0, 1, plan->ep);
    RoutingSpec spec = {
        .kind = plan->routing,
        .model = model,
        .exponent = plan->routing_exponent,
        .seed = plan->routing_seed,
        .sorted = plan->routing_sorted,
        .order = plan->routing_order != NULL ? (const int64_t *)(const void *)plan->routing_order->data : NULL,
        .loads = plan->routing_loads,
        .experts = model->n_experts,
        .top_k = model->top_k,
        .n_ranks = plan->ep,
        .tokens = tokens,
        .sequences = MAX(sequences, 1),
        .layer_draws = plan->routing_layer_draws,
        .sample_tokens = plan->routing_sample_tokens,
        .draws = plan->routing != PLAN_ROUTING_CONSECUTIVE,
        .balance = plan->moe.balance,
        .balance_steps = plan->moe.balance_steps,
        .balance_rate = plan->moe.balance_rate,
        .capacity = plan->moe.capacity,
        .measured_capacity = plan_capacity_is_measured(plan),
        .drop_target = plan->moe.drop_target,
        .drop = plan->moe.drop,
        .chunks = plan->moe.overlap_chunks,
        .padded = plan->moe.pad,
        .slots = plan_expert_slots(plan),
        .placement = plan->moe.placement,
        .nodes = plan->ep % group.per_domain == 0 ? plan->ep / group.per_domain : 1,
        .router_groups = MAX(model->router_groups, 1),
        .arrival = arrivals_spec(plan),
    };
    for (int64_t i = 0; i < model->n_layers; i++) {
        spec.n_layers += model->layers[i].ffn == FFN_MOE ? 1 : 0;
    }
    return spec;
}

gboolean routing_is_needed(const Plan *plan)
{
    const PlanMoe *moe = &plan->moe;
    gboolean slots = moe->redundant_experts > 0 || moe->placement != PLAN_PLACEMENT_LINEAR;
    gboolean cuts = moe->capacity.factor > 0 || moe->pad || moe->drop_target >= 0;
    return plan->model->n_experts > 0 && (plan->routing != PLAN_ROUTING_BALANCED || slots || cuts || plan->routing_replicas > 1);
}

/* The busiest rank's load when copies share an expert's. */
static double busiest_load(const PlacementShape *shape, const double *share, const int64_t *expert)
{
    g_autofree double *load = g_new(double, shape->gpus);
    g_autofree int64_t *copies = g_new0(int64_t, shape->experts);
    double most = 0;
    for (int64_t s = 0; s < shape->slots; s++) {
        copies[expert[s]]++;
    }
    placement_gpu_loads(shape, share, expert, copies, load);
    for (int64_t i = 0; i < shape->gpus; i++) {
        most = fmax(most, load[i]);
    }
    return most;
}

/* A placement of one slot per expert with each rank's further slots holding its own experts again: no load moves. */
static void repeat_own(const PlacementShape *shape, const int64_t *single, int64_t *ret_expert)
{
    int64_t own = shape->experts / shape->gpus, all = shape->slots / shape->gpus;
    for (int64_t s = 0; s < shape->slots; s++) {
        ret_expert[s] = single[s / all * own + s % all % own];
    }
}

/*
 * EPLB, unless its greedy packing makes the busiest rank busier than the experts in order do, or its copies make it busier
 * than it is without them.
 */
static void place_eplb(const PlacementShape *shape, const double *share, int64_t *ret_expert)
{
    g_autofree int64_t *copies = g_new(int64_t, shape->experts), *other = g_new(int64_t, shape->slots);
    gboolean ok = placement_eplb(shape, share, ret_expert, copies, NULL);
    g_assert(ok); /* a checked plan divides */
    if (shape->experts % shape->gpus != 0) {
        return;
    }
    if (shape->slots > shape->experts) {
        PlacementShape without = *shape;
        g_autofree int64_t *single = g_new(int64_t, shape->experts);
        without.slots = shape->experts;
        place_eplb(&without, share, single);
        repeat_own(shape, single, other);
    } else {
        placement_linear(shape->experts, shape->slots, other);
    }
    if (busiest_load(shape, share, other) < busiest_load(shape, share, ret_expert)) {
        memcpy(ret_expert, other, (size_t)shape->slots * sizeof *other);
    }
}

/* Where a layer's slots are, by the loads of a monitored window: the experts' shares. NULL: one each, in order. */
static Placement *place_experts(const RoutingSpec *spec, const double *share)
{
    int64_t slots = spec->slots > 0 ? spec->slots : spec->experts;
    g_autofree int64_t *expert = g_new(int64_t, slots);
    PlacementShape shape = {spec->experts, slots, spec->router_groups, MAX(spec->nodes, 1), spec->n_ranks};
    if (spec->placement == PLAN_PLACEMENT_LINEAR) {
        if (slots == spec->experts) {
            return NULL;
        }
        placement_linear(spec->experts, slots, expert);
    } else {
        place_eplb(&shape, share, expert);
    }
    return placement_new(spec->experts, slots, expert);
}

/* Capacity of a table from its tokens, 0 = none; the same for all sources. */
static int64_t table_capacity(const RoutingSpec *spec, const RoutingTable *table)
{
    MoeShape shape = {spec->tokens, spec->top_k, spec->experts};
    if (spec->measured_capacity) {
        return moe_capacity_measured(&spec->capacity, &shape, table->tokens, spec->n_ranks, MAX(spec->drop_target, 0));
    }
    return moe_capacity_rows(&spec->capacity, &shape);
}

/* Rows that a source sends to a slot. */
static int64_t slot_rows(const RoutingSpec *spec, const RoutingTable *table, int64_t source, int64_t slot)
{
    const int64_t *tokens = table->tokens + source * spec->experts;
    if (spec->padded) {
        return table->capacity;
    }
    if (table->placement == NULL) {
        return tokens[slot];
    }
    return placement_rows(table->placement, slot, source, tokens[table->placement->expert[slot]]);
}

/* Tokens of a source for a slot's expert before a chunk, and in it: the rows of that slot among them. */
static int64_t chunk_slot_rows(const RoutingTable *table, int64_t source, int64_t slot, int64_t before, int64_t tokens)
{
    const Placement *placement = table->placement;
    return placement == NULL ? tokens
                             : placement_rows(placement, slot, source, before + tokens) - placement_rows(placement, slot, source, before);
}

/* The kept tokens of a source, chunk by chunk, to the slots: kept[chunk][expert]. */
static void spread_chunks(const Routing *routing, RoutingTable *table, int64_t source, const int64_t *kept)
{
    const RoutingSpec *spec = &routing->spec;
    int64_t local = routing->slots / spec->n_ranks, n = spec->n_ranks;
    for (int64_t slot = 0; slot < routing->slots; slot++) {
        int64_t expert = table->placement != NULL ? table->placement->expert[slot] : slot, before = 0, dest = slot / local;
        for (int64_t c = 0; c < spec->chunks; c++) {
            int64_t tokens = kept[c * spec->experts + expert], rows = chunk_slot_rows(table, source, slot, before, tokens);
            table->chunk_rows[(dest * spec->chunks + c) * local + slot % local] += rows;
            table->chunk_splits[(c * n + source) * n + dest] += rows;
            before += tokens;
        }
    }
}

/* Cuts the tokens of each source into chunks. routed: before capacities. */
static void table_cut(const Routing *routing, int64_t idx, const int64_t *routed)
{
    const RoutingSpec *spec = &routing->spec;
    RoutingTable *table = &routing->tables[idx];
    int64_t n = spec->n_ranks, chunks = spec->chunks;
    g_autofree int64_t *kept = g_new(int64_t, chunks * spec->experts);
    table->chunk_rows = g_new0(int64_t, chunks * routing->slots);
    table->chunk_splits = g_new0(int64_t, chunks * n * n);
    table->chunk_arrivals = g_new0(int64_t, chunks * n * n);
    for (int64_t source = 0; source < n; source++) {
        for (int64_t c = 0; spec->chunk_tokens != NULL && c < chunks; c++) {
            memcpy(kept + c * spec->experts, spec->chunk_tokens + ((idx * chunks + c) * n + source) * spec->experts,
                   (size_t)spec->experts * sizeof *kept);
        }
        if (spec->chunk_tokens == NULL) {
            routing_cut_source(spec, (int)idx, source, routed + source * spec->experts, spec->exact ? 0 : table->capacity, kept);
        }
        spread_chunks(routing, table, source, kept);
    }
    for (int64_t i = 0; i < chunks * n * n; i++) {
        ArrivalSpec arrival = spec->arrival;
        int64_t c = i / (n * n);
        arrival.tokens = token_chunk_start(spec->tokens, chunks, c + 1) - token_chunk_start(spec->tokens, chunks, c);
        table->chunk_arrivals[i] = spec->arrivals != NULL     ? spec->arrivals[idx * chunks * n * n + i]
                                   : spec->arrival.top_k > 0 ? arrivals_expected(&arrival, table->chunk_splits[i], n)
                                                             : 0;
    }
}

/* Cuts the idx-th table at its capacity, shares rows among copies, and sums over the sources. */
static void table_finish(const Routing *routing, int64_t idx, const double *share)
{
    const RoutingSpec *spec = &routing->spec;
    RoutingTable *table = &routing->tables[idx];
    int64_t local = routing->slots / spec->n_ranks;
    if (spec->placed != NULL) {
        const RoutingTable *from = &spec->placed->tables[spec->placed->table_of_layer[idx]];
        table->placement =
            from->placement != NULL ? placement_new(spec->experts, routing->slots, from->placement->expert) : NULL;
        table->capacity = from->capacity;
    } else {
        table->placement = place_experts(spec, share);
        table->capacity = table_capacity(spec, table);
    }
    if (spec->chunks > 1) {
        table_cut(routing, idx, table->tokens);
    }
    table->slot_rows = g_new0(int64_t, routing->slots);
    table->splits = g_new0(int64_t, spec->n_ranks * spec->n_ranks);
    for (int64_t i = 0; i < spec->n_ranks * spec->experts; i++) {
        int64_t extra = table->capacity > 0 && !spec->exact ? MAX(table->tokens[i] - table->capacity, 0) : 0;
        table->n_routed += table->tokens[i];
        table->n_dropped += extra;
        table->tokens[i] -= extra;
    }
    for (int64_t source = 0; source < spec->n_ranks; source++) {
        for (int64_t slot = 0; slot < routing->slots; slot++) {
            int64_t rows = slot_rows(spec, table, source, slot);
            table->slot_rows[slot] += rows;
            table->splits[source * spec->n_ranks + slot / local] += rows;
        }
    }
    table->arrivals = g_new(int64_t, spec->n_ranks * spec->n_ranks);
    int64_t pairs = spec->n_ranks * spec->n_ranks;
    for (int64_t i = 0; i < pairs; i++) {
        table->arrivals[i] = spec->arrival.top_k > 0 ? arrivals_expected(&spec->arrival, table->splits[i], spec->n_ranks) : 0;
        for (int64_t c = 0; spec->arrivals != NULL && c < MAX(spec->chunks, 1); c++) {
            table->arrivals[i] = (c > 0 ? table->arrivals[i] : 0) + spec->arrivals[(idx * MAX(spec->chunks, 1) + c) * pairs + i];
        }
    }
}

/* Tokens of all sources: drawn, or in expectation. */
static void fill_tokens(const RoutingSpec *spec, int table, const double *share, int64_t *tokens)
{
    for (int64_t source = 0; source < spec->n_ranks; source++) {
        int64_t *own = tokens + source * spec->experts;
        if (spec->draws) {
            routing_draw_source(spec, table, source, share, own);
        } else if (source == 0) {
            routing_apportion(share, spec->experts, spec->tokens, spec->tokens * spec->top_k, own);
        } else {
            memcpy(own, tokens, (size_t)spec->experts * sizeof *own);
        }
    }
}

static void routing_fill_drawn(Routing *routing)
{
    const RoutingSpec *spec = &routing->spec;
    g_autofree double *popularity = g_new(double, spec->experts);
    g_autofree double *share = g_new(double, spec->experts);
    g_autofree double *sample = spec->kind == PLAN_ROUTING_ROUTER && spec->shares == NULL ? router_sample(spec) : NULL;
    if (spec->popularity != NULL) {
        memcpy(popularity, spec->popularity, (size_t)spec->experts * sizeof *popularity);
    } else if (spec->kind != PLAN_ROUTING_ROUTER) {
        routing_popularity(spec, popularity);
    }
    routing->n_tables = (int)CLAMP(spec->layer_draws, 1, MAX(spec->n_layers, 1));
    routing->tables = g_new0(RoutingTable, routing->n_tables);
    for (int t = 0; t < routing->n_tables; t++) {
        if (spec->shares != NULL) {
            memcpy(share, spec->shares + t * spec->experts, (size_t)spec->experts * sizeof *share);
        } else if (spec->kind == PLAN_ROUTING_ROUTER) {
            router_load(spec, sample, t, share);
        } else {
            routing_expert_shares(spec, t, popularity, share);
        }
        routing->tables[t].tokens = g_new0(int64_t, spec->n_ranks * spec->experts);
        fill_tokens(spec, t, share, routing->tables[t].tokens);
        table_finish(routing, t, share);
    }
    for (int64_t i = 0; i < spec->n_layers; i++) {
        routing->table_of_layer[i] = (int)(i % routing->n_tables);
    }
}

/* Share of each expert in what the sources were measured to send. */
static void measured_share(const RoutingSpec *spec, const int64_t *tokens, double *ret_share)
{
    g_autofree double *weights = g_new0(double, spec->experts);
    for (int64_t i = 0; i < spec->n_ranks * spec->experts; i++) {
        weights[i % spec->experts] += (double)tokens[i];
    }
    routing_shares(weights, spec->experts, (double)spec->top_k, ret_share);
}

int routing_spec_tables(const RoutingSpec *spec)
{
    if (spec->kind == PLAN_ROUTING_MEASURED) {
        return (int)MAX(json_array_size(json_doc_root(spec->loads)), 1);
    }
    return (int)CLAMP(spec->layer_draws, 1, MAX(spec->n_layers, 1));
}

void routing_table_shares(const RoutingSpec *spec, int table, double *ret_share)
{
    if (spec->kind == PLAN_ROUTING_MEASURED) {
        g_autofree int64_t *tokens = g_new0(int64_t, spec->n_ranks * spec->experts);
        gboolean ok = routing_read_layer(spec, table, tokens, NULL);
        g_assert(ok);
        measured_share(spec, tokens, ret_share);
    } else if (spec->kind == PLAN_ROUTING_ROUTER) {
        g_autofree double *sample = router_sample(spec);
        router_load(spec, sample, table, ret_share);
    } else {
        g_autofree double *popularity = g_new(double, spec->experts);
        routing_popularity(spec, popularity);
        routing_expert_shares(spec, table, popularity, ret_share);
    }
}

double *routing_router_shares(const RoutingSpec *spec)
{
    int n_tables = routing_spec_tables(spec);
    double *shares = g_new(double, n_tables * spec->experts);
    g_autofree double *sample = router_sample(spec);
    for (int t = 0; t < n_tables; t++) {
        router_load(spec, sample, t, shares + t * spec->experts);
    }
    return shares;
}

/* The first group is the measured one; others draw around its shares. */
static gboolean routing_fill_measured(Routing *routing, GError **error)
{
    const RoutingSpec *spec = &routing->spec;
    g_autofree double *share = g_new(double, spec->experts);
    int64_t n = routing_read_shape(spec, error);
    if (n == 0) {
        return FALSE;
    }
    routing->n_tables = (int)n;
    routing->tables = g_new0(RoutingTable, n);
    for (int64_t i = 0; i < n; i++) {
        RoutingTable *table = &routing->tables[i];
        table->tokens = g_new0(int64_t, spec->n_ranks * spec->experts);
        if (!routing_read_layer(spec, i, table->tokens, error)) {
            return FALSE;
        }
        measured_share(spec, table->tokens, share);
        if (spec->draws && spec->group > 0) {
            fill_tokens(spec, (int)i, share, table->tokens);
        }
        table_finish(routing, i, share);
    }
    for (int64_t i = 0; i < spec->n_layers && n > 1; i++) {
        routing->table_of_layer[i] = (int)i;
    }
    return TRUE;
}

Routing *routing_new(const RoutingSpec *spec, GError **error)
{
    g_autoptr(Routing) routing = g_new0(Routing, 1);
    g_assert(spec->experts > 0 && spec->top_k > 0 && spec->top_k <= spec->experts && spec->tokens >= 0);
    g_assert(spec->n_ranks > 0 && spec->sequences > 0);
    routing->spec = *spec;
    routing->slots = spec->slots > 0 ? spec->slots : spec->experts;
    g_assert(routing->slots >= spec->experts && routing->slots % spec->n_ranks == 0);
    routing->table_of_layer = g_new0(int, MAX(spec->n_layers, 1));
    if (spec->kind != PLAN_ROUTING_MEASURED) {
        routing_fill_drawn(routing);
    } else if (!routing_fill_measured(routing, error)) {
        return NULL;
    }
    routing->spec.popularity = routing->spec.shares = NULL; /* borrowed for the making alone */
    return g_steal_pointer(&routing);
}

void routing_free(Routing *routing)
{
    if (routing == NULL) {
        return;
    }
    for (int i = 0; i < routing->n_tables; i++) {
        g_free(routing->tables[i].tokens);
        g_free(routing->tables[i].slot_rows);
        g_free(routing->tables[i].splits);
        g_free(routing->tables[i].arrivals);
        g_free(routing->tables[i].chunk_rows);
        g_free(routing->tables[i].chunk_splits);
        g_free(routing->tables[i].chunk_arrivals);
        placement_free(routing->tables[i].placement);
    }
    g_free(routing->tables);
    g_free(routing->table_of_layer);
    g_free(routing);
}

int routing_n_tables(const Routing *routing)
{
    return routing->n_tables;
}

int routing_table(const Routing *routing, int64_t moe_layer)
{
    g_assert(moe_layer >= 0 && moe_layer < routing->spec.n_layers);
    return routing->table_of_layer[moe_layer];
}

int64_t routing_n_ranks(const Routing *routing)
{
    return routing->spec.n_ranks;
}

static const RoutingTable *table_at(const Routing *routing, int table)
{
    g_assert(table >= 0 && table < routing->n_tables);
    return &routing->tables[table];
}

int64_t routing_tokens(const Routing *routing, int table, int64_t source, int64_t expert)
{
    g_assert(source >= 0 && source < routing->spec.n_ranks && expert >= 0 && expert < routing->spec.experts);
    return table_at(routing, table)->tokens[source * routing->spec.experts + expert];
}

const int64_t *routing_splits(const Routing *routing, int table)
{
    return table_at(routing, table)->splits;
}

const int64_t *routing_arrivals(const Routing *routing, int table)
{
    return table_at(routing, table)->arrivals;
}

const int64_t *routing_chunk_splits(const Routing *routing, int table, int64_t chunk)
{
    const RoutingTable *t = table_at(routing, table);
    return t->chunk_splits == NULL ? t->splits : t->chunk_splits + chunk * routing->spec.n_ranks * routing->spec.n_ranks;
}

const int64_t *routing_chunk_arrivals(const Routing *routing, int table, int64_t chunk)
{
    const RoutingTable *t = table_at(routing, table);
    return t->chunk_arrivals == NULL ? t->arrivals : t->chunk_arrivals + chunk * routing->spec.n_ranks * routing->spec.n_ranks;
}

int64_t routing_send_rows(const Routing *routing, int table, int64_t source, int64_t dest)
{
    g_assert(source >= 0 && source < routing->spec.n_ranks && dest >= 0 && dest < routing->spec.n_ranks);
    return table_at(routing, table)->splits[source * routing->spec.n_ranks + dest];
}

/* Sums of a split matrix and of arrivals, as one rank sees them. */
static void sum_pairs(const Routing *routing, const int64_t *splits, const int64_t *arrivals, int64_t ep_rank, RoutingRows *rows)
{
    int64_t n = routing->spec.n_ranks;
    for (int64_t peer = 0; peer < n; peer++) {
        rows->n_received += splits[peer * n + ep_rank];
        rows->n_sent += splits[ep_rank * n + peer];
        rows->n_arrived += arrivals[peer * n + ep_rank];
    }
}

void routing_rows(const Routing *routing, int table, int64_t ep_rank, RoutingRows *ret_rows)
{
    const RoutingTable *t = table_at(routing, table);
    int64_t local = routing->slots / routing->spec.n_ranks;
    *ret_rows = (RoutingRows){
        .local_expert_rows = t->slot_rows + ep_rank * local, .capacity = t->capacity, .placement = t->placement};
    sum_pairs(routing, t->splits, t->arrivals, ep_rank, ret_rows);
}

void routing_chunk_rows(const Routing *routing, int table, int64_t ep_rank, int64_t chunk, RoutingRows *ret_rows)
{
    const RoutingTable *t = table_at(routing, table);
    int64_t local = routing->slots / routing->spec.n_ranks;
    if (t->chunk_rows == NULL) {
        routing_rows(routing, table, ep_rank, ret_rows);
        return;
    }
    *ret_rows = (RoutingRows){.local_expert_rows = t->chunk_rows + (ep_rank * routing->spec.chunks + chunk) * local,
                              .capacity = t->capacity,
                              .placement = t->placement};
    sum_pairs(routing, routing_chunk_splits(routing, table, chunk), routing_chunk_arrivals(routing, table, chunk), ep_rank, ret_rows);
}

/* Share of the kept tokens whose choices lie in the slots of a part: per token, expected choices there. */
static double part_share(const Routing *routing, const RoutingTable *t, int64_t part, int64_t n_parts)
{
    int64_t n = routing->spec.n_ranks, per_part = n / n_parts, sum = 0;
    for (int64_t source = 0; source < n; source++) {
        for (int64_t dest = part * per_part; dest < (part + 1) * per_part; dest++) {
            sum += t->splits[source * n + dest];
        }
    }
    return (double)sum / (double)MAX(n * routing->spec.tokens, 1);
}

double routing_distinct_parts(const Routing *routing, int table, int64_t n_parts)
{
    const RoutingTable *t = table_at(routing, table);
    double experts = (double)routing->spec.experts, k = (double)routing->spec.top_k, distinct = 0;
    g_assert(n_parts > 0 && routing->spec.n_ranks % n_parts == 0);
    for (int64_t part = 0; part < n_parts; part++) {
        double share = part_share(routing, t, part, n_parts), missed = 1;
        for (int64_t j = 0; j < routing->spec.top_k; j++) { /* choices without replacement */
            missed *= fmax(0, 1 - share / k * experts / (experts - (double)j));
        }
        distinct += 1 - missed;
    }
    return distinct;
}

/* Rows of the busiest expert over all sources. */
static int64_t busiest_expert(const Routing *routing, const RoutingTable *t)
{
    int64_t experts = routing->spec.experts, most = 0;
    for (int64_t e = 0; e < experts; e++) {
        int64_t sum = 0;
        for (int64_t source = 0; source < routing->spec.n_ranks; source++) {
            sum += t->tokens[source * experts + e];
        }
        most = MAX(most, sum);
    }
    return most;
}

void routing_stats(const Routing *routing, int table, RoutingStats *ret_stats)
{
    const RoutingTable *t = table_at(routing, table);
    int64_t computed = 0, n = routing->spec.n_ranks;
    *ret_stats = (RoutingStats){.expert_max_over_mean = 1, .rank_max_over_mean = 1, .n_routed = t->n_routed, .n_dropped = t->n_dropped};
    ret_stats->n_kept = t->n_routed - t->n_dropped;
    for (int64_t rank = 0; rank < n; rank++) {
        RoutingRows rows;
        routing_rows(routing, table, rank, &rows);
        computed += rows.n_received;
        if (rows.n_received > ret_stats->busiest_rows) {
            ret_stats->busiest_rows = rows.n_received;
            ret_stats->busiest_rank = rank;
        }
    }
    ret_stats->rank_mean_rows = (double)computed / (double)n;
    if (ret_stats->n_kept > 0) {
        ret_stats->expert_max_over_mean =
            (double)busiest_expert(routing, t) * (double)routing->spec.experts / (double)ret_stats->n_kept;
    }
    if (computed > 0) {
        ret_stats->rank_max_over_mean = (double)ret_stats->busiest_rows / ret_stats->rank_mean_rows;
        ret_stats->padding_frac = 1 - (double)ret_stats->n_kept / (double)computed;
    }
    if (t->n_routed > 0) {
        ret_stats->dropped_frac = (double)t->n_dropped / (double)t->n_routed;
    }
}
