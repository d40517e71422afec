#include "workloads/plan/routing.h"

#include <gsl/gsl_cdf.h>
#include <gsl/gsl_rng.h>
#include <math.h>
#include <string.h>

#include "sim/base/error.h"
#include "workloads/plan/topk-share.h"

/*
 * Natural spread of the load of random router weights, as the standard deviation of log-popularity: a part that all
 * sequences share and a part of each sequence, which averages out over those of the group. Fitted on the expert loads
 * of the measured balanced runs (64 experts, top 6; 0.28 at one sequence, 0.17 to 0.2 at four); an observed K3 router
 * at initialisation has its busiest expert at 1.5 to 1.8 times the mean, this model says 1.75.
 */
static const double natural_spread = 0.175;
static const double natural_spread_of_sequence = 0.24;

/* One table: tokens[source][expert], one row if all sources are alike, and rows of experts over all sources. */
typedef struct RoutingTable {
    int64_t *tokens;
    int64_t *expert_rows;
    int64_t n_dropped;
} RoutingTable;

struct Routing {
    int64_t experts, n_ranks, n_slots;
    gboolean alike; /* every source sends the same */
    int n_tables;
    RoutingTable *tables;
    int *table_of_layer;
    int64_t n_layers;
};

RoutingSpec routing_spec(const Plan *plan, int64_t tokens, int64_t sequences)
{
    const Model *model = plan->model;
    RoutingSpec spec = {
        .kind = plan->routing,
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
    };
    for (int64_t i = 0; i < model->n_layers; i++) {
        spec.n_layers += model->layers[i].ffn == FFN_MOE ? 1 : 0;
    }
    return spec;
}

void routing_shuffle(int64_t n, uint64_t seed, int64_t *ret_perm)
{
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, (unsigned long)(seed & 0xffffffffu));
    for (int64_t i = 0; i < n; i++) {
        ret_perm[i] = i;
    }
    for (int64_t i = 0; i < n - 1; i++) {
        int64_t j = i + (int64_t)(gsl_rng_get(rng) % (uint64_t)(n - i));
        int64_t swap = ret_perm[i];
        ret_perm[i] = ret_perm[j];
        ret_perm[j] = swap;
    }
    gsl_rng_free(rng);
}

/* Shares proportional to weights, none above 1: what an expert cannot take goes to the others in proportion. */
static void shares_of_weights(const double *weights, int64_t n, double sum, double *ret_share)
{
    double free_weight = 0;
    double free_share = sum;
    for (int64_t e = 0; e < n; e++) {
        free_weight += weights[e];
        ret_share[e] = 0;
    }
    gboolean changed = TRUE;
    while (changed && free_weight > 0) {
        changed = FALSE;
        double scale = free_share / free_weight;
        for (int64_t e = 0; e < n; e++) {
            if (ret_share[e] < 1 && weights[e] * scale >= 1) {
                ret_share[e] = 1;
                free_share -= 1;
                free_weight -= weights[e];
                changed = TRUE;
            }
        }
    }
    for (int64_t e = 0; e < n; e++) {
        if (ret_share[e] < 1) {
            ret_share[e] = free_weight > 0 ? weights[e] * free_share / free_weight : free_share / (double)n;
        }
    }
}

/* Quantiles of a log-normal spread; sampling noise of few tokens per expert widens it. */
static void natural_popularity(const RoutingSpec *spec, double *ret_share)
{
    double n = (double)spec->experts;
    double rows = (double)(spec->tokens * spec->n_ranks * spec->top_k) / n;
    double of_sequence =
        natural_spread_of_sequence * natural_spread_of_sequence / (double)(spec->sequences * spec->n_ranks);
    double room = 1 - (double)spec->top_k / n; /* no spread is left when every token takes every expert */
    double variance = (natural_spread * natural_spread + of_sequence) * room * room + (rows > 0 ? room / rows : 0);
    g_autofree double *weights = g_new(double, spec->experts);
    for (int64_t e = 0; e < spec->experts; e++) {
        weights[e] = exp(sqrt(variance) * gsl_cdf_ugaussian_Qinv(((double)e + 0.5) / n));
    }
    shares_of_weights(weights, spec->experts, (double)spec->top_k, ret_share);
}

void routing_popularity(const RoutingSpec *spec, double *ret_share)
{
    if (spec->kind == PLAN_ROUTING_ZIPF) {
        topk_share_zipf(spec->experts, spec->top_k, spec->exponent, ret_share);
    } else {
        natural_popularity(spec, ret_share);
    }
}

/* Fraction and place of one share. */
typedef struct Remainder {
    double frac;
    int64_t idx;
} Remainder;

static int remainder_compare(const void *a, const void *b)
{
    const Remainder *x = a;
    const Remainder *y = b;
    if (x->frac != y->frac) {
        return x->frac > y->frac ? -1 : 1;
    }
    return x->idx < y->idx ? -1 : 1;
}

/* Whole tokens by largest remainder: ret_tokens[i] <= tokens, sum exactly n_slots; ties to the lower index. */
static void apportion(const double *share, int64_t n, int64_t tokens, int64_t n_slots, int64_t *ret_tokens)
{
    g_autofree Remainder *rest = g_new(Remainder, n);
    int64_t left = n_slots;
    for (int64_t e = 0; e < n; e++) {
        double exact = MIN(share[e], 1) * (double)tokens;
        ret_tokens[e] = MIN((int64_t)floor(exact + 1e-9), tokens);
        rest[e] = (Remainder){exact - (double)ret_tokens[e], e};
        left -= ret_tokens[e];
    }
    qsort(rest, (size_t)n, sizeof *rest, remainder_compare);
    while (left != 0) { /* once through, unless rounding left more than one each */
        for (int64_t i = 0; i < n && left > 0; i++) {
            if (ret_tokens[rest[i].idx] < tokens) {
                ret_tokens[rest[i].idx]++;
                left--;
            }
        }
        for (int64_t i = n - 1; i >= 0 && left < 0; i--) {
            if (ret_tokens[rest[i].idx] > 0) {
                ret_tokens[rest[i].idx]--;
                left++;
            }
        }
    }
}

/*
 * Expert of each popularity rank. Zipf: as asked, else shuffled. Balanced: dealt to the ranks in snake order, because
 * equal expectation means that no rank is hot layer after layer.
 */
static void routing_order(const RoutingSpec *spec, int64_t *ret_order)
{
    int64_t local = spec->experts / spec->n_ranks;
    if (spec->kind == PLAN_ROUTING_ZIPF && spec->order == NULL && !spec->sorted) {
        g_autofree int64_t *rank_of = g_new(int64_t, spec->experts);
        routing_shuffle(spec->experts, spec->seed, rank_of);
        for (int64_t e = 0; e < spec->experts; e++) {
            ret_order[rank_of[e]] = e;
        }
        return;
    }
    for (int64_t i = 0; i < spec->experts; i++) {
        int64_t round = i / spec->n_ranks;
        int64_t place = i % spec->n_ranks;
        int64_t owner = round % 2 == 0 ? place : spec->n_ranks - 1 - place;
        gboolean snake = spec->kind != PLAN_ROUTING_ZIPF;
        ret_order[i] = spec->order != NULL && !snake ? spec->order[i] : snake ? owner * local + round : i;
    }
}

/* Cuts at the capacity and sums over the sources. */
static void table_finish(const RoutingSpec *spec, gboolean alike, RoutingTable *table)
{
    int64_t n_sources = alike ? 1 : spec->n_ranks;
    table->expert_rows = g_new0(int64_t, spec->experts);
    for (int64_t i = 0; i < n_sources * spec->experts; i++) {
        int64_t extra = spec->capacity > 0 ? MAX(table->tokens[i] - spec->capacity, 0) : 0;
        int64_t times = alike ? spec->n_ranks : 1;
        table->tokens[i] -= extra;
        table->n_dropped += extra * times;
        table->expert_rows[i % spec->experts] += table->tokens[i] * times;
    }
}

static void routing_fill_drawn(Routing *routing, const RoutingSpec *spec)
{
    g_autofree double *share = g_new(double, spec->experts);
    g_autofree int64_t *by_rank = g_new(int64_t, spec->experts);
    g_autofree int64_t *order = g_new(int64_t, spec->experts);
    if (spec->popularity != NULL) {
        memcpy(share, spec->popularity, (size_t)spec->experts * sizeof *share);
    } else {
        routing_popularity(spec, share);
    }
    apportion(share, spec->experts, spec->tokens, spec->tokens * spec->top_k, by_rank);
    routing_order(spec, order);
    routing->alike = TRUE;
    routing->n_tables = 1;
    routing->tables = g_new0(RoutingTable, 1);
    routing->tables[0].tokens = g_new(int64_t, spec->experts);
    for (int64_t i = 0; i < spec->experts; i++) {
        routing->tables[0].tokens[order[i]] = by_rank[i];
    }
    table_finish(spec, TRUE, &routing->tables[0]);
}

/* One list of counts, apportioned to the tokens of a source. */
static gboolean read_counts(json_t *list, const RoutingSpec *spec, const char *where, int64_t *ret_tokens,
                            GError **error)
{
    g_autofree double *weights = g_new(double, spec->experts);
    g_autofree double *share = g_new(double, spec->experts);
    double sum = 0;
    if (!json_is_array(list) || (int64_t)json_array_size(list) != spec->experts) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: expected a list of %" G_GINT64_FORMAT " token counts, one for each expert of the model", where,
                    spec->experts);
        return FALSE;
    }
    for (int64_t e = 0; e < spec->experts; e++) {
        json_t *count = json_array_get(list, (size_t)e);
        weights[e] = json_number_value(count);
        if (!json_is_number(count) || !(weights[e] >= 0)) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                        "%s[%" G_GINT64_FORMAT "]: a token count is a number of at least 0", where, e);
            return FALSE;
        }
        sum += weights[e];
    }
    if (sum <= 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: the token counts sum to 0", where);
        return FALSE;
    }
    shares_of_weights(weights, spec->experts, (double)spec->top_k, share);
    apportion(share, spec->experts, spec->tokens, spec->tokens * spec->top_k, ret_tokens);
    return TRUE;
}

static gboolean read_layer(json_t *value, const RoutingSpec *spec, const char *where, RoutingTable *table,
                           GError **error)
{
    gboolean by_source = json_is_array(json_array_get(value, 0));
    table->tokens = g_new0(int64_t, spec->n_ranks * spec->experts);
    if (by_source && (int64_t)json_array_size(value) != spec->n_ranks) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: counts of %zu source ranks, but the expert-parallel group has %" G_GINT64_FORMAT, where,
                    json_array_size(value), spec->n_ranks);
        return FALSE;
    }
    for (int64_t source = 0; source < spec->n_ranks; source++) {
        g_autofree char *place =
            by_source ? g_strdup_printf("%s[%" G_GINT64_FORMAT "]", where, source) : g_strdup(where);
        json_t *list = by_source ? json_array_get(value, (size_t)source) : value;
        if (!read_counts(list, spec, place, table->tokens + source * spec->experts, error)) {
            return FALSE;
        }
    }
    table_finish(spec, FALSE, table);
    return TRUE;
}

static gboolean routing_fill_measured(Routing *routing, const RoutingSpec *spec, const char *place, GError **error)
{
    int64_t n = (int64_t)json_array_size(spec->loads); /* 0 for other values */
    if (n != 1 && n != spec->n_layers) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: expected a list of loads for %" G_GINT64_FORMAT
                    " MoE layers, or one for all of them; got %" G_GINT64_FORMAT,
                    place, spec->n_layers, n);
        return FALSE;
    }
    routing->n_tables = (int)n;
    routing->tables = g_new0(RoutingTable, n);
    for (int64_t i = 0; i < n; i++) {
        g_autofree char *where = g_strdup_printf("%s: [%" G_GINT64_FORMAT "]", place, i);
        if (!read_layer(json_array_get(spec->loads, (size_t)i), spec, where, &routing->tables[i], error)) {
            return FALSE;
        }
    }
    for (int64_t i = 0; i < spec->n_layers && n > 1; i++) {
        routing->table_of_layer[i] = (int)i;
    }
    return TRUE;
}

Routing *routing_new(const RoutingSpec *spec, const char *place, GError **error)
{
    g_autoptr(Routing) routing = g_new0(Routing, 1);
    g_assert(spec->experts > 0 && spec->top_k > 0 && spec->top_k <= spec->experts && spec->tokens >= 0);
    g_assert(spec->n_ranks > 0 && spec->experts % spec->n_ranks == 0 && spec->sequences > 0);
    routing->experts = spec->experts;
    routing->n_ranks = spec->n_ranks;
    routing->n_slots = spec->tokens * spec->top_k;
    routing->n_layers = spec->n_layers;
    routing->table_of_layer = g_new0(int, MAX(spec->n_layers, 1));
    if (spec->kind != PLAN_ROUTING_MEASURED) {
        routing_fill_drawn(routing, spec);
    } else if (!routing_fill_measured(routing, spec, place != NULL ? place : "load_file", error)) {
        return NULL;
    }
    return g_steal_pointer(&routing);
}

void routing_free(Routing *routing)
{
    if (routing == NULL) {
        return;
    }
    for (int i = 0; i < routing->n_tables; i++) {
        g_free(routing->tables[i].tokens);
        g_free(routing->tables[i].expert_rows);
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
    g_assert(moe_layer >= 0 && moe_layer < routing->n_layers);
    return routing->table_of_layer[moe_layer];
}

static const int64_t *source_tokens(const Routing *routing, int table, int64_t source)
{
    g_assert(table >= 0 && table < routing->n_tables && source >= 0 && source < routing->n_ranks);
    return routing->tables[table].tokens + (routing->alike ? 0 : source * routing->experts);
}

int64_t routing_tokens(const Routing *routing, int table, int64_t source, int64_t expert)
{
    g_assert(expert >= 0 && expert < routing->experts);
    return source_tokens(routing, table, source)[expert];
}

int64_t routing_send_rows(const Routing *routing, int table, int64_t source, int64_t dest)
{
    const int64_t *tokens = source_tokens(routing, table, source);
    int64_t local = routing->experts / routing->n_ranks;
    int64_t sum = 0;
    g_assert(dest >= 0 && dest < routing->n_ranks);
    for (int64_t e = dest * local; e < (dest + 1) * local; e++) {
        sum += tokens[e];
    }
    return sum;
}

void routing_rows(const Routing *routing, int table, int64_t ep_rank, RoutingRows *ret_rows)
{
    const int64_t *tokens = source_tokens(routing, table, ep_rank);
    int64_t local = routing->experts / routing->n_ranks;
    *ret_rows = (RoutingRows){.local_expert_rows = routing->tables[table].expert_rows + ep_rank * local};
    for (int64_t e = 0; e < local; e++) {
        ret_rows->n_received += ret_rows->local_expert_rows[e];
    }
    for (int64_t e = 0; e < routing->experts; e++) {
        ret_rows->n_sent += tokens[e];
    }
}

void routing_stats(const Routing *routing, int table, RoutingStats *ret_stats)
{
    const RoutingTable *t = &routing->tables[table];
    int64_t local = routing->experts / routing->n_ranks;
    int64_t expert_max = 0;
    int64_t rank_max = 0;
    int64_t sum = 0;
    *ret_stats = (RoutingStats){.expert_max_over_mean = 1, .rank_max_over_mean = 1};
    for (int64_t rank = 0; rank < routing->n_ranks; rank++) {
        int64_t rows = 0;
        for (int64_t e = rank * local; e < (rank + 1) * local; e++) {
            expert_max = MAX(expert_max, t->expert_rows[e]);
            rows += t->expert_rows[e];
        }
        if (rows > rank_max) {
            rank_max = rows;
            ret_stats->busiest_rank = rank;
        }
        sum += rows;
    }
    if (sum > 0) {
        ret_stats->expert_max_over_mean = (double)expert_max * (double)routing->experts / (double)sum;
        ret_stats->rank_max_over_mean = (double)rank_max * (double)routing->n_ranks / (double)sum;
    }
    if (sum + t->n_dropped > 0) {
        ret_stats->dropped_frac = (double)t->n_dropped / (double)(sum + t->n_dropped);
    }
}
