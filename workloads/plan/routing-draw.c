#include "workloads/plan/routing-draw.h"

#include <gsl/gsl_cdf.h>
#include <gsl/gsl_rng.h>
#include <math.h>
#include <string.h>

#include "sim/base/rng.h"
#include "workloads/plan/balanced-load.h"
#include "workloads/plan/topk-share.h"

/*
 * Natural spread of the load of random router weights, as the standard deviation of log-popularity: a part that all
 * sequences share and a part of each sequence, which averages out over those of the group. Fitted on the expert loads
 * of the measured balanced runs (64 experts, top 6; 0.28 at one sequence, 0.17 to 0.2 at four); an observed K3 router
 * at initialisation has its busiest expert at 1.5 to 1.8 times the mean, this model says 1.75.
 */
static const double natural_spread = 0.175;
static const double natural_spread_of_sequence = 0.24;

/*
 * Under zipf each token's log-scores carry a Gumbel noise of scale 1 besides. The tail of a normal score of deviation 0.9
 * falls by 1.8 / 0.9 per unit where 6 of 64 lie above, a Gumbel one's by 1: the same shift of scores moves popularity half
 * as far.
 */
static const double zipf_spread_of_sequence = 0.12;

/* More sequences than this are drawn as so many longer ones. */
enum { DRAWN_SEQUENCES_MAX = 8 };

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

void routing_shares(const double *weights, int64_t n, double sum, double *ret_share)
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

/* Spread of log-popularity that no draw of tokens brings: what all sequences share. */
static double shared_spread(const RoutingSpec *spec)
{
    return natural_spread * (1 - (double)spec->top_k / (double)spec->experts);
}

/*
 * Quantiles of a log-normal spread. Where tokens are not drawn, the parts of the sequences and the sampling noise of few
 * tokens per expert widen it.
 */
static void natural_popularity(const RoutingSpec *spec, double *ret_share)
{
    double n = (double)spec->experts;
    double rows = (double)(spec->tokens * spec->n_ranks * spec->top_k) / n;
    double of_sequence =
        natural_spread_of_sequence * natural_spread_of_sequence / (double)(spec->sequences * spec->n_ranks);
    double room = 1 - (double)spec->top_k / n; /* no spread is left when every token takes every expert */
    double variance = shared_spread(spec) * shared_spread(spec);
    variance += spec->draws ? 0 : of_sequence * room * room + (rows > 0 ? room / rows : 0);
    g_autofree double *weights = g_new(double, spec->experts);
    for (int64_t e = 0; e < spec->experts; e++) {
        weights[e] = exp(sqrt(variance) * gsl_cdf_ugaussian_Qinv(((double)e + 0.5) / n));
    }
    routing_shares(weights, spec->experts, (double)spec->top_k, ret_share);
}

void routing_popularity(const RoutingSpec *spec, double *ret_share)
{
    if (spec->balance != PLAN_BALANCE_NONE) {
        balanced_load(spec, ret_share);
    } else if (spec->kind == PLAN_ROUTING_CONSECUTIVE) {
        for (int64_t e = 0; e < spec->experts; e++) {
            ret_share[e] = (double)spec->top_k / (double)spec->experts;
        }
    } else if (spec->kind == PLAN_ROUTING_ZIPF) {
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

void routing_apportion(const double *share, int64_t n, int64_t tokens, int64_t n_slots, int64_t *ret_tokens)
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
static void routing_order(const RoutingSpec *spec, int table, int64_t *ret_order)
{
    int64_t local = spec->experts / spec->n_ranks;
    if (spec->kind == PLAN_ROUTING_ZIPF && spec->order == NULL && !spec->sorted) {
        g_autofree int64_t *rank_of = g_new(int64_t, spec->experts);
        routing_shuffle(spec->experts, spec->seed + (uint64_t)table, rank_of);
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

void routing_expert_shares(const RoutingSpec *spec, int table, const double *popularity, double *ret_share)
{
    g_autofree int64_t *order = g_new(int64_t, spec->experts);
    routing_order(spec, table, order);
    for (int64_t i = 0; i < spec->experts; i++) {
        ret_share[order[i]] = popularity[i];
    }
}

static double sequence_spread(const RoutingSpec *spec)
{
    return spec->kind == PLAN_ROUTING_ZIPF ? zipf_spread_of_sequence : natural_spread_of_sequence;
}

double routing_scattered(const RoutingSpec *spec, int table, int window, int64_t expert, double share, double tokens,
                         double sequences)
{
    double of_sequence = sequence_spread(spec) * (1 - share) * share * tokens;
    double variance = tokens * share * (1 - share) + of_sequence * of_sequence / sequences;
    uint64_t index = ((uint64_t)window << 20 | (uint64_t)table) * (uint64_t)spec->experts + (uint64_t)expert;
    return fmax(0, tokens * share + sqrt(variance) * rng_normal(spec->seed, RNG_PLACEMENT, index));
}

/* One sequence of n tokens: adds its tokens. index: first of two normal numbers per expert. */
static void draw_sequence(const RoutingSpec *spec, const double *share, int64_t n, uint64_t index, int64_t *tokens)
{
    int64_t experts = spec->experts;
    g_autofree double *weights = g_new(double, experts);
    g_autofree double *own = g_new(double, experts);
    g_autofree int64_t *whole = g_new(int64_t, experts);
    for (int64_t e = 0; e < experts; e++) {
        double z = rng_normal(spec->seed, RNG_ROUTING, index + 2 * (uint64_t)e);
        weights[e] = share[e] * exp(sequence_spread(spec) * (1 - share[e]) * z);
    }
    routing_shares(weights, experts, (double)spec->top_k, own);
    for (int64_t e = 0; e < experts; e++) {
        double z = rng_normal(spec->seed, RNG_ROUTING, index + 2 * (uint64_t)e + 1);
        double drawn = (double)n * own[e] + sqrt((double)n * own[e] * (1 - own[e])) * z;
        weights[e] = CLAMP(drawn, 0, (double)n);
    }
    routing_shares(weights, experts, (double)spec->top_k, own);
    routing_apportion(own, experts, n, n * spec->top_k, whole);
    for (int64_t e = 0; e < experts; e++) {
        tokens[e] += whole[e];
    }
}

void routing_draw_source(const RoutingSpec *spec, int table, int64_t source, const double *share, int64_t *ret_tokens)
{
    int64_t n_sequences = MIN(spec->sequences, DRAWN_SEQUENCES_MAX);
    uint64_t place = ((uint64_t)spec->group * (uint64_t)MAX(spec->n_layers, 1) + (uint64_t)table) * (uint64_t)spec->n_ranks;
    memset(ret_tokens, 0, (size_t)spec->experts * sizeof *ret_tokens);
    for (int64_t q = 0; q < n_sequences; q++) {
        int64_t n = spec->tokens / n_sequences + (q < spec->tokens % n_sequences ? 1 : 0);
        uint64_t at = (place + (uint64_t)source) * DRAWN_SEQUENCES_MAX + (uint64_t)q;
        if (n > 0) {
            draw_sequence(spec, share, n, at * 2 * (uint64_t)spec->experts, ret_tokens);
        }
    }
}
