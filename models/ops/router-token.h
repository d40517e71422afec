/*
 * One token through a router, forward and backward: scores, keys, choice, weights and their derivatives, in the
 * precision of the file that includes this (models/ops/router.c).
 */
#pragma once

#include <math.h>
#include <string.h>

#include "models/ops/router.h"
#include "models/real.h"

enum { ROUTER_WEIGHTS, ROUTER_SEL, ROUTER_ORDER, ROUTER_COUNTS, ROUTER_LOGITS }; /* outputs */

/* Guards the quotient of sigmoid weights against scores that are all zero. */
static const double sum_epsilon = 1e-20;

/* Whether slots may be dropped. */
static gboolean router_drops(const RouterAttr *attr)
{
    return attr->capacity.factor > 0 || attr->adaptive;
}

/* Whether weights are divided by their sum. */
static gboolean router_renorms(const RouterAttr *attr)
{
    return attr->renorm && attr->top_k > 1 && attr->score != ROUTER_TOPK_SOFTMAX;
}

/* In place: softmax of n values. */
static void router_softmax(const OpRun *run, real *z, int64_t n)
{
    real most = z[0];
    real sum = 0;
    for (int64_t i = 1; i < n; i++) {
        most = MAX(most, z[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        z[i] = (real)exp((double)(z[i] - most));
        sum += z[i];
    }
    for (int64_t i = 0; i < n; i++) {
        z[i] /= sum;
    }
    op_count(run, 5 * (double)n, 0, 0); /* largest, difference, exponential, sum, quotient */
}

/* Scores of all experts from their logits: what weights are made of. */
static void router_scores(const OpRun *run, const RouterAttr *attr, const real *logits, real *score)
{
    memcpy(score, logits, (size_t)attr->experts * sizeof *score);
    op_count(run, 0, attr->experts, 0);
    if (attr->score == ROUTER_SOFTMAX) {
        router_softmax(run, score, attr->experts);
    } else if (attr->score == ROUTER_SIGMOID) {
        for (int64_t e = 0; e < attr->experts; e++) {
            score[e] = (real)(1 / (1 + exp(-(double)score[e])));
        }
        op_count(run, (double)attr->experts, 0, 0);
    }
}

/* The k largest of n keys by falling key, ties by the lower index; -infinity is never chosen before others. */
static void router_top(const real *key, int64_t n, int64_t k, int64_t *ret_sel)
{
    int64_t n_held = 0;
    for (int64_t e = 0; e < n; e++) {
        int64_t place = n_held;
        while (place > 0 && key[e] > key[ret_sel[place - 1]]) {
            place--;
        }
        if (place >= k) {
            continue;
        }
        n_held = MIN(n_held + 1, k);
        for (int64_t i = n_held - 1; i > place; i--) {
            ret_sel[i] = ret_sel[i - 1];
        }
        ret_sel[place] = e;
    }
}

/* Closes all groups but the best: their keys become -infinity. */
static void router_limit_groups(const OpRun *run, const RouterAttr *attr, const real *score, real *key, real *scratch)
{
    int64_t size = attr->experts / attr->groups;
    gboolean sum2 = attr->group_score == ROUTER_GROUP_SUM2;
    g_autofree int64_t *best = g_new(int64_t, attr->groups);
    g_autofree guint8 *open = g_new0(guint8, attr->groups);
    for (int64_t g = 0; g < attr->groups; g++) {
        const real *of = (sum2 ? key : score) + g * size;
        int64_t two[2];
        router_top(of, size, MIN(2, size), two);
        scratch[g] = of[two[0]] + (sum2 && size > 1 ? of[two[1]] : 0);
        op_count(run, sum2 ? 1 : 0, 0, 0);
    }
    router_top(scratch, attr->groups, attr->topk_groups, best);
    for (int64_t g = 0; g < attr->topk_groups; g++) {
        open[best[g]] = 1;
    }
    for (int64_t e = 0; e < attr->experts; e++) {
        key[e] = open[e / size] ? key[e] : -(real)INFINITY;
    }
}

/* What the framework's quotient keeps: the chosen scores and their sum. */
enum { ROUTER_AUX_SCORES, ROUTER_AUX_CHOSEN, ROUTER_AUX_SUM };

/* Scores that are kept of a token: of all experts, or of the chosen. */
static gboolean router_keeps_all(const OpRun *run, const RouterAttr *attr)
{
    return attr->score == ROUTER_SOFTMAX || run->view->op->eager;
}

/* Weights of the chosen from their scores. */
static void router_weigh(const OpRun *run, const RouterAttr *attr, int64_t token, real *w)
{
    int64_t k = attr->top_k;
    if (attr->score == ROUTER_TOPK_SOFTMAX) {
        router_softmax(run, w, k);
    }
    if (router_renorms(attr)) {
        real sum = (real)sum_epsilon;
        for (int64_t j = 0; j < k; j++) {
            sum += w[j];
        }
        if (run->aux[ROUTER_AUX_CHOSEN] != NULL) {
            memcpy((real *)run->aux[ROUTER_AUX_CHOSEN]->data + token * k, w, (size_t)k * sizeof *w);
            ((real *)run->aux[ROUTER_AUX_SUM]->data)[token] = sum;
        }
        for (int64_t j = 0; j < k; j++) {
            w[j] /= sum;
        }
        op_count(run, 2 * (double)k + 1, 0, 0);
    }
    for (int64_t j = 0; attr->scaling != 1 && j < k; j++) {
        w[j] *= (real)attr->scaling;
    }
    op_count(run, attr->scaling != 1 ? (double)k : 0, 0, 0);
}

/* One token: scores, keys, choice, weights, and what backward needs. scratch: 2 E and a score for each group. */
static void router_choose(const OpRun *run, const RouterAttr *attr, const real *logits, int64_t token, real *scratch)
{
    int64_t e_all = attr->experts;
    int64_t k = attr->top_k;
    real *score = scratch;
    real *key = scratch + e_all;
    real *w = (real *)run->out[ROUTER_WEIGHTS]->data + token * k;
    int64_t *sel = (int64_t *)run->out[ROUTER_SEL]->data + token * k;
    router_scores(run, attr, logits, score);
    memcpy(key, score, (size_t)e_all * sizeof *key);
    for (int64_t e = 0; attr->bias_buffer && e < e_all; e++) {
        key[e] += ((const real *)run->param[1]->data)[e];
    }
    op_count(run, attr->bias_buffer ? (double)e_all : 0, 0, 0);
    if (attr->groups > 1) {
        router_limit_groups(run, attr, score, key, scratch + 2 * e_all);
    }
    router_top(key, e_all, k, sel);
    if (run->view->rows->choices != NULL) {
        memcpy(sel, run->view->rows->choices + token * k, (size_t)k * sizeof *sel);
    }
    for (int64_t j = 0; j < k; j++) {
        w[j] = score[sel[j]];
    }
    if (run->aux[0] != NULL) {
        gboolean full = router_keeps_all(run, attr);
        int64_t n = full ? e_all : k;
        memcpy((real *)run->aux[0]->data + token * n, full ? score : w, (size_t)n * sizeof *w);
        op_count(run, 0, 0, n);
    }
    router_weigh(run, attr, token, w);
    op_count(run, 0, 0, 2 * k);
}

/* Gradient of the chosen scores, in place, from that of their weights: scale and quotient. kept_sum: their sum, or
 * NULL. */
static void router_unweigh(const OpRun *run, const RouterAttr *attr, const real *s, const real *kept_sum, real *g)
{
    int64_t k = attr->top_k;
    for (int64_t j = 0; attr->scaling != 1 && j < k; j++) {
        g[j] *= (real)attr->scaling;
    }
    op_count(run, attr->scaling != 1 ? (double)k : 0, 0, 0);
    if (router_renorms(attr)) {
        real sum = (real)sum_epsilon;
        real dot = 0;
        for (int64_t j = 0; j < k; j++) {
            sum += s[j];
            dot += g[j] * s[j];
        }
        sum = kept_sum != NULL ? *kept_sum : sum;
        dot /= sum;
        for (int64_t j = 0; j < k; j++) {
            g[j] = (g[j] - dot) / sum;
        }
        op_count(run, 5 * (double)k + 2, 0, 0);
    }
}

/* Adds to dlogits (zero, or another's gradient) from the gradient g of the chosen scores; p: kept scores. */
static void router_dscore(const OpRun *run, const RouterAttr *attr, const real *p, const int64_t *sel, const real *g,
                          real *dlogits)
{
    int64_t k = attr->top_k;
    real dot = 0;
    if (attr->score == ROUTER_SIGMOID) {
        for (int64_t j = 0; j < k; j++) {
            dlogits[sel[j]] += g[j] * p[j] * (1 - p[j]);
        }
        op_count(run, 3 * (double)k, 0, 0);
        return;
    }
    gboolean full = attr->score == ROUTER_SOFTMAX;
    for (int64_t j = 0; j < k; j++) {
        dot += g[j] * p[full ? sel[j] : j];
    }
    for (int64_t e = 0; full && e < attr->experts; e++) {
        dlogits[e] -= p[e] * dot;
    }
    for (int64_t j = 0; j < k; j++) {
        real pj = p[full ? sel[j] : j];
        dlogits[sel[j]] += full ? pj * g[j] : pj * (g[j] - dot);
    }
    op_count(run, 4 * (double)k + (full ? 2 * (double)attr->experts : 0), 0, 0);
}

/* Gradient of one token's logits, in dlogits. scratch: 2 k. */
static void router_dlogits(const OpRun *run, const RouterAttr *attr, int64_t token, real *dlogits, real *scratch)
{
    int64_t k = attr->top_k;
    int64_t e_all = attr->experts;
    const int64_t *sel = (const int64_t *)run->out[ROUTER_SEL]->data + token * k;
    gboolean own = attr->score == ROUTER_TOPK_SOFTMAX; /* the weights are all that is kept */
    gboolean full = !own && router_keeps_all(run, attr);
    const Tensor *numerators = run->aux[ROUTER_AUX_CHOSEN], *sums = run->aux[ROUTER_AUX_SUM];
    int64_t n_kept = full ? e_all : k;
    const real *kept = (const real *)(own ? run->out[ROUTER_WEIGHTS] : run->aux[0])->data + token * n_kept;
    real *g = scratch;
    real *chosen = scratch + k;
    for (int64_t j = 0; j < k; j++) {
        g[j] = run->dout[ROUTER_WEIGHTS] != NULL ? ((const real *)run->dout[ROUTER_WEIGHTS]->data)[token * k + j] : 0;
        chosen[j] = full ? kept[sel[j]] : own && attr->scaling != 1 ? kept[j] / (real)attr->scaling : kept[j];
    }
    memset(dlogits, 0, (size_t)e_all * sizeof *dlogits);
    op_count(run, own && attr->scaling != 1 ? (double)k : 0, 2 * k + n_kept, e_all);
    router_unweigh(run, attr, numerators != NULL ? (const real *)numerators->data + token * k : chosen,
                   sums != NULL ? (const real *)sums->data + token : NULL, g);
    router_dscore(run, attr, attr->score == ROUTER_SOFTMAX ? kept : chosen, sel, g, dlogits);
    if (attr->emit_logits) { /* the losses' gradient of the same logits */
        for (int64_t e = 0; run->dout[ROUTER_LOGITS] != NULL && e < e_all; e++) {
            dlogits[e] += ((const real *)run->dout[ROUTER_LOGITS]->data)[token * e_all + e];
        }
        op_count(run, (double)e_all, e_all, 0);
    }
}
