#include "models/ops/router-loss.h"

#include <math.h>
#include <string.h>

#include "models/op-name.h"
#include "models/ops/router-counts.h"
#include "models/ops/router.h"
#include "models/real.h"
#include "models/sequences.h"
#include "sim/base/error.h"
#include "sim/base/quantity.h"

enum { IN_LOGITS, IN_SEL, IN_COUNTS };

/* What a chain keeps: scores, times chosen counts, of a balance loss, and of sigmoid scores their sums; of a z-loss a
 * log-sum-exp. */
enum { AUX_SCORES, AUX_COUNTS, AUX_SUMS, AUX_LSE = 0 };

REAL_DECLARE(router_loss_forward);
REAL_DECLARE(router_loss_backward);

/* Sets of tokens over which load is balanced: sequences, parts of so many tokens, or all of them. */
static int64_t loss_scopes(const OpView *view)
{
    const RouterLossAttr *attr = view->op->attr;
    if (attr->per_sequence) {
        return sequences_count(view->rows, ROWS_TOKENS);
    }
    return attr->scope_tokens > 0 ? quantity_div_up(op_rows(view, ROWS_TOKENS), attr->scope_tokens) : 1;
}

static int64_t loss_scope_start(const OpView *view, int64_t scope)
{
    const RouterLossAttr *attr = view->op->attr;
    if (attr->per_sequence) {
        return sequences_start(view->rows, ROWS_TOKENS, scope);
    }
    int64_t n = op_rows(view, ROWS_TOKENS);
    return attr->scope_tokens > 0 ? MIN(scope * attr->scope_tokens, n) : scope * n;
}

/* Log-sum-exp of n values. */
static real loss_lse(const OpRun *run, const real *z, int64_t n)
{
    real most = z[0];
    real sum = 0;
    for (int64_t i = 1; i < n; i++) {
        most = MAX(most, z[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        sum += (real)exp((double)(z[i] - most));
    }
    op_count(run, 4 * (double)n + 2, n, 0);
    return most + (real)log((double)sum);
}

/*
 * Scores normalised over all experts. Sigmoid: raw scores stay in the second half of p, and their sum is returned.
 */
static real loss_scores(const OpRun *run, const RouterLossAttr *attr, const real *z, real *p)
{
    int64_t n = attr->experts;
    gboolean sigmoid = attr->score == ROUTER_SIGMOID;
    real most = z[0];
    real sum = 0;
    for (int64_t i = 1; i < n && !sigmoid; i++) {
        most = MAX(most, z[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        p[n + i] = (real)(sigmoid ? 1 / (1 + exp(-(double)z[i])) : exp((double)(z[i] - most)));
        sum += p[n + i];
    }
    for (int64_t i = 0; i < n; i++) {
        p[i] = p[n + i] / sum;
    }
    op_count(run, (sigmoid ? 3 : 5) * (double)n, n, 0);
    return sum;
}

/* Tokens of a scope, how often each expert was chosen by those that count, and their choices in all. */
typedef struct LossScope {
    int64_t start, end;
    real *counts;
    double n_choices;
} LossScope;

static void loss_scope_count(const OpRun *run, const RouterLossAttr *attr, int64_t scope, LossScope *ret_scope)
{
    int64_t start = loss_scope_start(run->view, scope), end = loss_scope_start(run->view, scope + 1);
    ret_scope->start = start;
    ret_scope->end = end;
    if (run->in[IN_COUNTS] != NULL) {
        const int64_t *counts = (const int64_t *)run->in[IN_COUNTS]->data + scope % MAX(attr->n_passes, 1) * attr->experts;
        ret_scope->n_choices = 0;
        for (int64_t e = 0; e < attr->experts; e++) {
            ret_scope->counts[e] = (real)counts[e];
            ret_scope->n_choices += (double)counts[e];
        }
        op_count(run, (double)attr->experts, attr->experts, 0);
        return;
    }
    const int64_t *sel = run->in[IN_SEL]->data;
    memset(ret_scope->counts, 0, (size_t)attr->experts * sizeof *ret_scope->counts);
    for (int64_t i = start * attr->top_k; i < end * attr->top_k; i++) {
        ret_scope->counts[sel[i]] += 1;
    }
    ret_scope->n_choices = (double)(attr->top_k * (end - start));
    op_count(run, 0, (end - start) * attr->top_k, 0);
}

/* Keeps of a chain: what loss_scope_count() found, and a token's scores, whose sum sigmoid ones keep beside. */
static void loss_keep_counts(const OpRun *run, const RouterLossAttr *attr, int64_t scope, const real *counts)
{
    if (run->aux[AUX_COUNTS] != NULL) {
        memcpy((real *)run->aux[AUX_COUNTS]->data + scope * attr->experts, counts,
               (size_t)attr->experts * sizeof *counts);
    }
}

/* A scope in backward, as loss_scope_count() gives it: kept, or counted again. */
static void loss_scope_again(const OpRun *run, const RouterLossAttr *attr, int64_t scope, LossScope *ret_scope)
{
    if (run->aux[AUX_COUNTS] == NULL) {
        loss_scope_count(run, attr, scope, ret_scope);
        return;
    }
    ret_scope->start = loss_scope_start(run->view, scope);
    ret_scope->end = loss_scope_start(run->view, scope + 1);
    memcpy(ret_scope->counts, (const real *)run->aux[AUX_COUNTS]->data + scope * attr->experts,
           (size_t)attr->experts * sizeof *ret_scope->counts);
    ret_scope->n_choices = 0;
    for (int64_t e = 0; e < attr->experts; e++) {
        ret_scope->n_choices += (double)ret_scope->counts[e];
    }
}

static void loss_keep_scores(const OpRun *run, const RouterLossAttr *attr, int64_t token, const real *p, real sum)
{
    int64_t n = attr->experts;
    gboolean sigmoid = attr->score == ROUTER_SIGMOID;
    if (run->aux[AUX_SCORES] != NULL) {
        memcpy((real *)run->aux[AUX_SCORES]->data + token * n, sigmoid ? p + n : p, (size_t)n * sizeof *p);
    }
    if (run->aux[AUX_SUMS] != NULL) {
        ((real *)run->aux[AUX_SUMS]->data)[token] = sum;
    }
}

/* A token's scores in backward, as loss_scores() gives them: kept, or made again. */
static real loss_scores_again(const OpRun *run, const RouterLossAttr *attr, int64_t token, real *p)
{
    int64_t n = attr->experts;
    if (run->aux[AUX_SCORES] == NULL) {
        return loss_scores(run, attr, (const real *)run->in[IN_LOGITS]->data + token * n, p);
    }
    const real *kept = (const real *)run->aux[AUX_SCORES]->data + token * n;
    real sum = run->aux[AUX_SUMS] != NULL ? ((const real *)run->aux[AUX_SUMS]->data)[token] : 1;
    for (int64_t e = 0; e < n; e++) {
        p[n + e] = kept[e];
        p[e] = kept[e] / sum;
    }
    return sum;
}

/* coeff E / (choices T scopes): factor of sum_e c_e sum_t p. */
static real loss_factor(const RouterLossAttr *attr, const LossScope *scope, int64_t n_scopes)
{
    double tokens = (double)MAX(scope->end - scope->start, 1);
    return (real)(attr->coeff * (double)attr->experts / (MAX(scope->n_choices, 1) * tokens * (double)n_scopes));
}

static real loss_aux(const OpRun *run, const RouterLossAttr *attr, const real *logits)
{
    int64_t e_all = attr->experts;
    int64_t n_scopes = loss_scopes(run->view);
    g_autofree real *work = g_new(real, (gsize)(4 * e_all));
    LossScope scope = {.counts = work + 2 * e_all};
    real *sums = work + 3 * e_all;
    real loss = 0;
    for (int64_t i = 0; i < n_scopes; i++) {
        real dot = 0;
        loss_scope_count(run, attr, i, &scope);
        loss_keep_counts(run, attr, i, scope.counts);
        memset(sums, 0, (size_t)e_all * sizeof *sums);
        for (int64_t t = scope.start; t < scope.end; t++) {
            real sum = loss_scores(run, attr, logits + t * e_all, work);
            loss_keep_scores(run, attr, t, work, sum);
            for (int64_t e = 0; e < e_all; e++) {
                sums[e] += work[e];
            }
            op_count(run, (double)e_all, 0, 0);
        }
        for (int64_t e = 0; e < e_all; e++) {
            dot += scope.counts[e] * sums[e];
        }
        loss += loss_factor(attr, &scope, n_scopes) * dot;
        op_count(run, 2 * (double)e_all + 2, 0, 0);
    }
    return loss;
}

static gboolean loss_check_sel(const OpRun *run, const RouterLossAttr *attr, GError **error)
{
    const int64_t *sel = run->in[IN_SEL]->data;
    for (int64_t i = 0; i < op_rows(run->view, ROWS_TOKENS) * attr->top_k; i++) {
        if (sel[i] < 0 || sel[i] >= attr->experts) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                        "%s: choice %" G_GINT64_FORMAT " is expert %" G_GINT64_FORMAT "; there are %" G_GINT64_FORMAT,
                        run->view->op->name, i, sel[i], attr->experts);
            return FALSE;
        }
    }
    return TRUE;
}

gboolean REAL_NAME(router_loss_forward)(const OpRun *run, GError **error)
{
    const RouterLossAttr *attr = run->view->op->attr;
    int64_t n = op_rows(run->view, ROWS_TOKENS);
    const real *logits = run->in[IN_LOGITS]->data;
    real loss = 0;
    if (run->in[IN_SEL] != NULL && !loss_check_sel(run, attr, error)) {
        return FALSE;
    }
    if (attr->kind == ROUTER_LOSS_AUX) {
        loss = loss_aux(run, attr, logits);
    } else {
        for (int64_t t = 0; t < n; t++) {
            real lse = loss_lse(run, logits + t * attr->experts, attr->experts);
            loss += lse * lse;
            if (run->aux[AUX_LSE] != NULL) {
                ((real *)run->aux[AUX_LSE]->data)[t] = lse;
            }
            op_count(run, 2, 0, 0);
        }
        loss *= (real)(attr->coeff / (double)MAX(n, 1));
        op_count(run, 1, 0, 0);
    }
    ((real *)run->out[0]->data)[0] = loss;
    op_count(run, 0, 0, 1);
    return TRUE;
}

static void loss_aux_gradient(const OpRun *run, const RouterLossAttr *attr, real upstream, real *dlogits)
{
    int64_t e_all = attr->experts;
    int64_t n_scopes = loss_scopes(run->view);
    gboolean sigmoid = attr->score == ROUTER_SIGMOID;
    g_autofree real *p = g_new(real, (gsize)(3 * e_all));
    real *dp = p + 2 * e_all;
    LossScope scope = {.counts = dp};
    for (int64_t i = 0; i < n_scopes; i++) {
        loss_scope_again(run, attr, i, &scope);
        real factor = upstream * loss_factor(attr, &scope, n_scopes);
        for (int64_t e = 0; e < e_all; e++) {
            dp[e] *= factor;
        }
        op_count(run, (double)e_all + 1, 0, 0);
        for (int64_t t = scope.start; t < scope.end; t++) {
            real sum = loss_scores_again(run, attr, t, p);
            real dot = 0;
            for (int64_t e = 0; e < e_all; e++) {
                dot += dp[e] * p[e];
            }
            for (int64_t e = 0; e < e_all; e++) {
                real s = p[e_all + e];
                dlogits[t * e_all + e] = sigmoid ? (dp[e] - dot) / sum * s * (1 - s) : p[e] * (dp[e] - dot);
            }
            op_count(run, (sigmoid ? 7 : 4) * (double)e_all, 0, e_all);
        }
    }
}

gboolean REAL_NAME(router_loss_backward)(const OpRun *run, GError **error)
{
    const RouterLossAttr *attr = run->view->op->attr;
    int64_t n = op_rows(run->view, ROWS_TOKENS);
    real upstream = run->dout[0] != NULL ? ((const real *)run->dout[0]->data)[0] : 0;
    (void)error;
    if (run->din[IN_LOGITS] == NULL) {
        return TRUE;
    }
    real *dlogits = run->din[IN_LOGITS]->data;
    op_count(run, 0, 1, 0);
    if (attr->kind == ROUTER_LOSS_AUX) {
        loss_aux_gradient(run, attr, upstream, dlogits);
        return TRUE;
    }
    real factor = upstream * (real)(2 * attr->coeff / (double)MAX(n, 1));
    op_count(run, 1, 0, 0);
    for (int64_t t = 0; t < n; t++) {
        const real *z = (const real *)run->in[IN_LOGITS]->data + t * attr->experts;
        real lse =
            run->aux[AUX_LSE] != NULL ? ((const real *)run->aux[AUX_LSE]->data)[t] : loss_lse(run, z, attr->experts);
        for (int64_t e = 0; e < attr->experts; e++) {
            dlogits[t * attr->experts + e] = factor * lse * (real)exp((double)(z[e] - lse));
        }
        op_count(run, 3 * (double)attr->experts + 1, 0, attr->experts);
    }
    return TRUE;
}

#if REAL_HAS_CLASS
static int loss_add(Graph *graph, const char *name, const int inputs[3], const RouterLossAttr *attr)
{
    int loss = graph_add_tensor(graph, op_name(name, "loss").text, ROWS_ONE, 1, op_wide_dtype(graph));
    Op *op = op_add(graph, OP_router_loss, name, attr, sizeof *attr);
    for (int i = 0; i < 3; i++) {
        op_input(op, inputs[i]);
    }
    op_output(graph, op, loss);
    return loss;
}

int router_loss_add(Graph *graph, const char *name, int logits, int sel, const RouterLossAttr *attr)
{
    const int inputs[3] = {logits, attr->kind == ROUTER_LOSS_Z ? -1 : sel, -1};
    return loss_add(graph, name, inputs, attr);
}

int router_loss_add_counted(Graph *graph, const char *name, int logits, int counts, const RouterLossAttr *attr)
{
    const int inputs[3] = {logits, -1, counts};
    return loss_add(graph, name, inputs, attr);
}

static gboolean loss_is_counted(const OpView *view)
{
    return view->op->inputs[IN_COUNTS] >= 0;
}

/* Bytes that say how often each expert was chosen; for a z-loss 0. */
static int64_t loss_choice_bytes(const OpView *view)
{
    const RouterLossAttr *attr = view->op->attr;
    if (attr->kind == ROUTER_LOSS_Z) {
        return 0;
    }
    return dtype_bytes(DTYPE_INT64, loss_is_counted(view) ? loss_scopes(view) * attr->experts : op_rows(view, ROWS_TOKENS) * attr->top_k);
}

/* FLOPs per logit of the forward pass: softmax 5, sigmoid and its share of the sum 3; log-sum-exp 4. */
static double loss_forward_flops(const RouterLossAttr *attr)
{
    if (attr->kind == ROUTER_LOSS_Z) {
        return 4;
    }
    return attr->score == ROUTER_SIGMOID ? 3 : 5;
}

/* Fused: logits and selection, scores are made again. Eager: what the nodes keep. */
static void router_loss_saved(const OpView *view, OpSaved *ret_saved)
{
    const RouterLossAttr *attr = view->op->attr;
    Dtype wide = op_wide_dtype(view->graph);
    *ret_saved = (OpSaved){0};
    if (!op_needs_input_grad(view, IN_LOGITS)) {
        return;
    }
    if (!view->op->eager) {
        guint32 choices = loss_is_counted(view) ? 1u << IN_COUNTS : 1u << IN_SEL;
        ret_saved->inputs = 1u << IN_LOGITS | (attr->kind == ROUTER_LOSS_AUX ? choices : 0u);
        return;
    }
    if (attr->kind == ROUTER_LOSS_Z) {
        ret_saved->inputs = 1u << IN_LOGITS;
        op_saved_aux(ret_saved, ROWS_TOKENS, 1, wide);
        return;
    }
    op_saved_aux(ret_saved, ROWS_TOKENS, attr->experts, wide); /* scores */
    gboolean per_sequence = attr->per_sequence;
    op_saved_aux(ret_saved, per_sequence ? ROWS_SEQUENCES : ROWS_ONE,
                 per_sequence ? attr->experts : loss_scopes(view) * attr->experts, wide); /* the other factor: counts */
    if (attr->score == ROUTER_SIGMOID) {
        op_saved_aux(ret_saved, ROWS_TOKENS, 1, wide); /* their sums */
    }
}

static void router_loss_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const RouterLossAttr *attr = view->op->attr;
    int64_t n = op_rows(view, ROWS_TOKENS);
    int64_t logits = op_in_bytes(view, IN_LOGITS);
    int64_t wide = dtype_bytes(op_wide_dtype(view->graph), 1);
    int64_t per_expert = loss_scopes(view) * attr->experts;
    int64_t choices = loss_choice_bytes(view);
    double elems = (double)(n * attr->experts);
    gboolean aux = attr->kind == ROUTER_LOSS_AUX;
    *ret_cost = (OpCost){0};
    if (!view->op->eager) {
        double flops = elems * (loss_forward_flops(attr) + (aux ? 1 : 0));
        flops += aux ? 2.0 * (double)(per_expert + loss_scopes(view)) : 4.0 * (double)n + 1;
        flops += loss_is_counted(view) ? (double)per_expert : 0;
        op_cost_stream(ret_cost, WORK_SOFTMAX, flops, logits + choices, wide);
        return;
    }
    if (!aux) {
        op_cost_stream(ret_cost, WORK_REDUCE, 4 * elems, logits, n * wide); /* log-sum-exp */
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, (double)n, n * wide, n * wide);
        op_cost_stream(ret_cost, WORK_REDUCE, (double)n, n * wide, wide);
    } else {
        op_cost_stream(ret_cost, WORK_SOFTMAX, elems * loss_forward_flops(attr), logits, logits);
        op_cost_stream(ret_cost, WORK_REDUCE, elems, logits, per_expert * wide);
        if (loss_is_counted(view)) {
            op_cost_stream(ret_cost, WORK_REDUCE, (double)per_expert, choices, loss_scopes(view) * wide);
        } else {
            op_cost_stream(ret_cost, WORK_SCATTER_ADD, 0, choices, per_expert * wide); /* counts */
        }
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, (double)per_expert, 2 * per_expert * wide, per_expert * wide);
        op_cost_stream(ret_cost, WORK_REDUCE, (double)per_expert, per_expert * wide, wide);
    }
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, 1, wide, wide); /* coefficient */
}

static void router_loss_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const RouterLossAttr *attr = view->op->attr;
    int64_t n = op_rows(view, ROWS_TOKENS);
    int64_t logits = op_in_bytes(view, IN_LOGITS);
    int64_t wide = dtype_bytes(op_wide_dtype(view->graph), 1);
    int64_t choices = loss_choice_bytes(view);
    double elems = (double)(n * attr->experts);
    double per_expert = (double)(loss_scopes(view) * attr->experts);
    gboolean aux = attr->kind == ROUTER_LOSS_AUX;
    gboolean sigmoid = attr->score == ROUTER_SIGMOID;
    *ret_cost = (OpCost){0};
    if (!op_needs_input_grad(view, IN_LOGITS)) {
        return;
    }
    if (!view->op->eager) {
        double flops = elems * (loss_forward_flops(attr) + (!aux ? 3 : sigmoid ? 7 : 4));
        flops += aux ? per_expert + (double)loss_scopes(view) : 3.0 * (double)n + 1;
        flops += loss_is_counted(view) ? per_expert : 0;
        op_cost_stream(ret_cost, WORK_SOFTMAX, flops, logits + choices + wide, logits);
        return;
    }
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, 1, wide, wide);
    op_cost_stream(ret_cost, WORK_STRIDED, elems, n * wide, logits); /* gradient widened to the logits' shape */
    op_cost_stream(ret_cost, WORK_SOFTMAX, elems * (aux ? 4 : 3), 2 * logits, logits);
    ret_cost->workspace_bytes = logits;
}

static gboolean router_loss_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const RouterLossAttr attrs[] = {
        {.kind = ROUTER_LOSS_AUX, .experts = 5, .top_k = 2, .score = ROUTER_SOFTMAX, .coeff = 0.5},
        {.kind = ROUTER_LOSS_AUX,
         .experts = 4,
         .top_k = 1,
         .score = ROUTER_SIGMOID,
         .coeff = 0.3,
         .per_sequence = TRUE},
        {.kind = ROUTER_LOSS_Z, .experts = 3, .top_k = 1, .score = ROUTER_SOFTMAX, .coeff = 0.2},
        {.kind = ROUTER_LOSS_AUX, .experts = 5, .top_k = 2, .score = ROUTER_SIGMOID, .coeff = 0.5, .scope_tokens = 4},
        {.kind = ROUTER_LOSS_AUX, .experts = 4, .top_k = 2, .score = ROUTER_SOFTMAX, .coeff = 0.7, .scope_tokens = 2, .n_passes = 2},
    };
    if (idx >= (int)G_N_ELEMENTS(attrs)) {
        return FALSE;
    }
    RouterAttr router = {.experts = attrs[idx].experts,
                         .top_k = attrs[idx].top_k,
                         .score = attrs[idx].score,
                         .scaling = 1,
                         .emit_logits = TRUE};
    rows->rows[ROWS_ONE] = 1;
    rows->rows[ROWS_TOKENS] = 6;
    rows->rows[ROWS_SEQUENCES] = 2;
    rows->seq_len = 3;
    rows->rows[ROWS_EXPERTS] = router.experts;
    rows->rows[ROWS_SLOTS] = 6 * router.top_k;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, 3, graph->compute, TRUE);
    RouterTensors t = router_add(graph, "gate", x, &router);
    if (attrs[idx].n_passes > 0) {
        RouterCountsAttr counts = {router.experts, router.top_k, attrs[idx].scope_tokens, attrs[idx].n_passes};
        int counted = router_counts_add(graph, "counts", t.sel, &counts);
        graph_add_output(graph, router_loss_add_counted(graph, "balance", t.logits, counted, &attrs[idx]));
    } else {
        graph_add_output(graph, router_loss_add(graph, "balance", t.logits, t.sel, &attrs[idx]));
    }
    return TRUE;
}

extern const OpClass op_router_loss;
const OpClass op_router_loss = {
    .id = "router_loss",
    .title = "router loss",
    .no_grad_inputs = 1u << IN_SEL | 1u << IN_COUNTS,
    .saved = router_loss_saved,
    .forward_cost = router_loss_forward_cost,
    .backward_cost = router_loss_backward_cost,
    .forward = REAL_KERNELS(router_loss_forward),
    .backward = REAL_KERNELS(router_loss_backward),
    .sample = router_loss_sample,
};
#endif
