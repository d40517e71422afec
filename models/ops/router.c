#include "models/ops/router.h"

#include <math.h>
#include <string.h>

#include "models/matmul.h"
#include "models/op-name.h"
#include "models/ops/router-token.h"
#include "models/placement.h"
#include "models/real.h"
#include "sim/base/error.h"

REAL_DECLARE(router_forward);
REAL_DECLARE(router_backward);

/* Rows that an expert takes of so many tokens. */
static int64_t router_capacity(const OpView *view, const MoeShape *shape)
{
    const RouterAttr *attr = view->op->attr;
    return attr->adaptive ? view->rows->capacity : moe_capacity_rows(&attr->capacity, shape);
}

/* Marks what stays under the capacity, scope by scope; NULL when nothing has to go. Caller frees. */
static guint8 *router_keep(const OpRun *run, const RouterAttr *attr, int64_t n)
{
    const int64_t *sel = run->out[ROUTER_SEL]->data;
    int64_t n_choices = n * attr->top_k, scope = attr->capacity_scope > 0 ? attr->capacity_scope : n;
    if (!router_drops(attr)) {
        return NULL;
    }
    g_autofree double *weights = g_new(double, (gsize)n_choices);
    guint8 *keep = g_new(guint8, (gsize)n_choices);
    for (int64_t i = 0; i < n_choices; i++) {
        weights[i] = (double)((const real *)run->out[ROUTER_WEIGHTS]->data)[i];
    }
    for (int64_t t = 0; t < n; t += scope) {
        MoeShape shape = {MIN(scope, n - t), attr->top_k, attr->experts};
        int64_t capacity = router_capacity(run->view, &shape);
        int64_t at = t * attr->top_k;
        moe_keep(attr->drop, &shape, capacity, sel + at, weights + at, keep + at);
    }
    op_count(run, 0, attr->drop == MOE_DROP_PROBS ? n_choices : 0, 0);
    return keep;
}

/* Slots of all tokens in expert order, without what a capacity drops; copies of an expert share its rows. */
static void router_order(const OpRun *run, const RouterAttr *attr, int64_t n)
{
    const int64_t *sel = run->out[ROUTER_SEL]->data;
    const Placement *placement = run->view->rows->placement;
    int64_t n_choices = n * attr->top_k;
    MoeShape shape = {n, attr->top_k, placement != NULL ? placement->slots : attr->experts};
    g_autofree guint8 *keep = router_keep(run, attr, n);
    g_autofree int64_t *slots = NULL;
    if (placement != NULL) {
        slots = g_new(int64_t, (gsize)n_choices);
        placement_choose(placement, run->view->rows->source, sel, keep, n_choices, slots);
        sel = slots;
    }
    moe_order(&shape, sel, keep, run->out[ROUTER_ORDER]->data, run->out[ROUTER_COUNTS]->data);
    op_count(run, 0, n_choices, n_choices + shape.experts);
}

gboolean REAL_NAME(router_forward)(const OpRun *run, GError **error)
{
    const RouterAttr *attr = run->view->op->attr;
    int64_t n = op_rows(run->view, ROWS_TOKENS);
    int64_t h = op_in(run->view, 0)->width;
    int64_t e = attr->experts;
    gboolean emits = attr->emit_logits;
    g_autofree real *own = emits ? NULL : g_new(real, (gsize)(n * e));
    g_autofree real *scratch = g_new(real, (gsize)(2 * e + MAX(attr->groups, 1)));
    real *logits = emits ? run->out[ROUTER_LOGITS]->data : own;
    Matmul shape = {.m = n, .n = e, .k = h, .trans_b = TRUE, .lda = h, .ldb = h, .ldc = e, .alpha = 1};
    REAL_NAME(matmul)(&shape, run->in[0]->data, run->param[0]->data, logits);
    op_count(run, 2 * (double)n * (double)e * (double)h, n * h + e * h, n * e);
    for (int64_t i = 0; attr->linear_bias && i < n * e; i++) {
        logits[i] += ((const real *)run->param[2]->data)[i % e];
    }
    op_count(run, attr->linear_bias ? (double)(n * e) : 0, (attr->linear_bias ? e : 0) + (attr->bias_buffer ? e : 0),
             0);
    for (int64_t i = 0; i < n * e; i++) {
        if (!isfinite((double)logits[i])) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                        "%s: the logit of token %" G_GINT64_FORMAT " for expert %" G_GINT64_FORMAT
                        " is not a finite number; check the router's input and weights",
                        run->view->op->name, i / e, i % e);
            return FALSE;
        }
    }
    for (int64_t t = 0; t < n; t++) {
        router_choose(run, attr, logits + t * e, t, scratch);
    }
    router_order(run, attr, n);
    return TRUE;
}

gboolean REAL_NAME(router_backward)(const OpRun *run, GError **error)
{
    const RouterAttr *attr = run->view->op->attr;
    int64_t n = op_rows(run->view, ROWS_TOKENS);
    int64_t h = op_in(run->view, 0)->width;
    int64_t e = attr->experts;
    g_autofree real *dlogits = g_new(real, (gsize)(n * e));
    g_autofree real *scratch = g_new(real, (gsize)(2 * attr->top_k));
    double product = 2 * (double)n * (double)e * (double)h;
    (void)error;
    for (int64_t t = 0; t < n; t++) {
        router_dlogits(run, attr, t, dlogits + t * e, scratch);
    }
    if (run->din[0] != NULL) {
        Matmul shape = {.m = n, .n = h, .k = e, .lda = e, .ldb = h, .ldc = h, .alpha = 1};
        REAL_NAME(matmul)(&shape, dlogits, run->param[0]->data, run->din[0]->data);
        op_count(run, product, n * e + e * h, n * h);
    }
    if (run->dparam[0] != NULL) {
        Matmul shape = {.m = e, .n = h, .k = n, .trans_a = TRUE, .lda = e, .ldb = h, .ldc = h, .alpha = 1};
        REAL_NAME(matmul)(&shape, dlogits, run->in[0]->data, run->dparam[0]->data);
        op_count(run, product, n * e + n * h, e * h);
    }
    if (attr->linear_bias && run->dparam[2] != NULL) {
        real *dbias = run->dparam[2]->data;
        memset(dbias, 0, (size_t)e * sizeof *dbias);
        for (int64_t i = 0; i < n * e; i++) {
            dbias[i % e] += dlogits[i];
        }
        op_count(run, (double)(n * e), n * e, e);
    }
    return TRUE;
}

#if REAL_HAS_CLASS
RouterAttr router_of_model(const Model *model)
{
    return (RouterAttr){.experts = model->n_experts,
                        .top_k = model->top_k,
                        .score = model->router_score,
                        .renorm = model->router_renorm,
                        .scaling = model->router_scaling,
                        .groups = model->router_groups,
                        .topk_groups = model->router_topk_groups,
                        .group_score = model->router_group_max ? ROUTER_GROUP_MAX : ROUTER_GROUP_SUM2,
                        .bias_buffer = model->router_bias_buffer,
                        .linear_bias = model->router_linear_bias};
}

RouterTensors router_add(Graph *graph, const char *name, int x, const RouterAttr *attr)
{
    int64_t hidden = graph_tensor(graph, x)->width;
    int64_t k = attr->top_k;
    g_assert(k > 0 && k <= attr->experts);
    int weight = graph_add_param(graph, op_name(name, "weight").text, PARAM_MATRIX, attr->experts, hidden, 0);
    int buffer = -1;
    int bias = -1;
    if (attr->bias_buffer) {
        buffer =
            graph_add_param(graph, op_name(name, "e_score_correction_bias").text, PARAM_BUFFER, attr->experts, 0, 0);
        graph_param(graph, buffer)->always_fp32 = TRUE;
    }
    if (attr->linear_bias) {
        bias = graph_add_param(graph, op_name(name, "bias").text, PARAM_VECTOR, attr->experts, 0, 0);
    }
    RouterTensors t = {
        .weights = graph_add_tensor(graph, op_name(name, "weights").text, ROWS_TOKENS, k, op_wide_dtype(graph)),
        .sel = graph_add_tensor(graph, op_name(name, "sel").text, ROWS_TOKENS, k, DTYPE_INT64),
        .order = graph_add_tensor(graph, op_name(name, "order").text, ROWS_TOKENS, k, DTYPE_INT64),
        .counts = graph_add_tensor(graph, op_name(name, "counts").text, ROWS_EXPERTS, 1, DTYPE_INT64),
        .logits = -1,
    };
    if (attr->emit_logits) {
        t.logits =
            graph_add_tensor(graph, op_name(name, "logits").text, ROWS_TOKENS, attr->experts, op_wide_dtype(graph));
    }
    Op *op = op_add(graph, OP_router, name, attr, sizeof *attr);
    op_input(op, x);
    op_param(graph, op, weight);
    op_param(graph, op, buffer);
    op_param(graph, op, bias);
    op_output(graph, op, t.weights);
    op_output(graph, op, t.sel);
    op_output(graph, op, t.order);
    op_output(graph, op, t.counts);
    if (t.logits >= 0) {
        op_output(graph, op, t.logits);
    }
    return t;
}

/* Sizes of a router, and the bytes of one element of its compute type, its wide type and an index. */
typedef struct RouterSize {
    int64_t n, h, e, k, groups;
    int64_t b, wide, idx;
    const RouterAttr *attr;
} RouterSize;

static int64_t router_padded_slots(const OpView *view)
{
    const RouterAttr *attr = view->op->attr;
    MoeShape shape = {op_rows(view, ROWS_TOKENS), attr->top_k, attr->experts};
    return attr->padded ? router_capacity(view, &shape) : 0;
}

static RouterSize router_size(const OpView *view)
{
    const RouterAttr *attr = view->op->attr;
    return (RouterSize){
        .n = op_rows(view, ROWS_TOKENS),
        .h = op_in(view, 0)->width,
        .e = attr->experts,
        .k = attr->top_k,
        .groups = attr->groups > 1 ? attr->groups : 0,
        .b = dtype_bytes(op_in(view, 0)->dtype, 1),
        .wide = dtype_bytes(op_wide_dtype(view->graph), 1),
        .idx = dtype_bytes(DTYPE_INT64, 1),
        .attr = attr,
    };
}

/* Whether the scores of all experts, not of the chosen alone, enter the derivative. */
static gboolean router_is_full(const RouterAttr *attr)
{
    return attr->score == ROUTER_SOFTMAX;
}

/* Eager: what the framework's nodes keep (softmax its result, the quotient both sides); fused: scores alone. */
static void router_saved(const OpView *view, OpSaved *ret_saved)
{
    const RouterAttr *attr = view->op->attr;
    Dtype wide = op_wide_dtype(view->graph);
    *ret_saved = (OpSaved){0};
    if (!op_has_backward(view)) {
        return;
    }
    ret_saved->inputs = op_trains_param(view, 0) ? 1u : 0u;
    ret_saved->outputs = 1u << ROUTER_SEL;
    if (attr->score == ROUTER_TOPK_SOFTMAX) {
        ret_saved->outputs |= 1u << ROUTER_WEIGHTS;
    } else {
        gboolean full = router_is_full(attr) || view->op->eager;
        op_saved_aux(ret_saved, ROWS_TOKENS, full ? attr->experts : attr->top_k, wide);
    }
    if (view->op->eager && router_renorms(attr)) {
        op_saved_aux(ret_saved, ROWS_TOKENS, attr->top_k, wide);
        op_saved_aux(ret_saved, ROWS_TOKENS, 1, wide);
    }
}

/* FLOPs per token of scores, group scores and weights. */
static double router_select_flops(const RouterAttr *attr)
{
    double e = (double)attr->experts;
    double k = (double)attr->top_k;
    double flops = attr->score == ROUTER_SOFTMAX ? 5 * e : attr->score == ROUTER_SIGMOID ? e : 5 * k;
    flops += attr->bias_buffer ? e : 0;
    flops += attr->groups > 1 && attr->group_score == ROUTER_GROUP_SUM2 ? (double)attr->groups : 0;
    flops += router_renorms(attr) ? 2 * k + 1 : 0;
    return flops + (attr->scaling == 1 ? 0 : k);
}

/* Slot order and counts from the selection, fused: one pass of a counting sort. */
static void router_order_cost(const RouterSize *s, OpCost *cost)
{
    gboolean by_weight = router_drops(s->attr) && s->attr->drop == MOE_DROP_PROBS;
    int64_t weights = by_weight ? s->n * s->k * s->wide : 0;
    Work *sort = op_cost_stream(cost, WORK_SORT, 0, s->n * s->k * s->idx + weights, (s->n * s->k + s->e) * s->idx);
    sort->m = 1;
    sort->n = s->n * s->k;
}

static void router_forward_fused(const RouterSize *s, const OpView *view, OpCost *cost)
{
    const RouterAttr *attr = s->attr;
    OpSaved saved;
    router_saved(view, &saved);
    int64_t aux = saved.n_aux > 0 ? s->n * saved.aux[0].width : 0;
    Work *logits = op_cost_gemm(cost, WORK_GEMM_NT, op_in(view, 0)->dtype, s->n, s->e, s->h);
    logits->write_bytes = s->n * s->e * s->wide;
    if (attr->linear_bias) {
        logits->flops += (double)s->n * (double)s->e;
        logits->read_bytes += s->e * s->b;
    }
    Work *top = op_cost_stream(cost, WORK_TOPK, (double)s->n * router_select_flops(attr),
                               (s->n * s->e + (attr->bias_buffer ? s->e : 0)) * s->wide,
                               (s->n * s->k + aux) * s->wide + s->n * s->k * s->idx);
    top->m = s->n;
    top->n = s->e;
    top->k = s->k;
    router_order_cost(s, cost);
}

/*
 * Logits and scores as the framework's operators make them. A softmax router selects by noisy log-scores, as the
 * measured program does to give its load a known distribution.
 */
static void router_scores_eager(const RouterSize *s, OpCost *cost)
{
    int64_t full = s->n * s->e * s->wide;
    double n = (double)(s->n * s->e);
    op_cost_stream(cost, WORK_COPY, 0, s->n * s->e * s->b, full); /* logits.float() */
    if (s->attr->score == ROUTER_SOFTMAX) {
        Work *softmax = op_cost_stream(cost, WORK_SOFTMAX, 5 * n, full, full);
        softmax->m = s->n;
        softmax->n = s->e;
        op_cost_stream(cost, WORK_ELEMENTWISE, n, full, full);                 /* log */
        op_cost_stream(cost, WORK_STRIDED, n, full + s->e * s->wide, full);    /* + bias of the load */
        op_cost_stream(cost, WORK_ELEMENTWISE, 0, 0, full);                    /* uniform noise */
        op_cost_stream(cost, WORK_ELEMENTWISE, 2 * n, full, full);             /* clamp */
        op_cost_stream(cost, WORK_ELEMENTWISE, n, full, full)->n_launches = 3; /* log, negate, log */
        op_cost_stream(cost, WORK_ELEMENTWISE, n, 2 * full, full);             /* difference */
    } else if (s->attr->score == ROUTER_SIGMOID) {
        op_cost_stream(cost, WORK_ELEMENTWISE, n, full, full);
        if (s->attr->bias_buffer) {
            op_cost_stream(cost, WORK_STRIDED, n, full + s->e * s->wide, full);
        }
    }
}

/* Group limit: scores of groups, the best of them, a mask over the experts. */
static void router_groups_eager(const RouterSize *s, OpCost *cost)
{
    int64_t full = s->n * s->e * s->wide;
    int64_t best = s->n * s->groups;
    if (s->groups == 0) {
        return;
    }
    if (s->attr->group_score == ROUTER_GROUP_SUM2) {
        Work *two = op_cost_stream(cost, WORK_TOPK, 0, full, 2 * best * (s->wide + s->idx));
        two->m = best;
        two->n = s->e / s->groups;
        two->k = 2;
    }
    gboolean sum2 = s->attr->group_score == ROUTER_GROUP_SUM2;
    op_cost_stream(cost, WORK_REDUCE, (double)best, sum2 ? 2 * best * s->wide : full, best * s->wide);
    Work *top = op_cost_stream(cost, WORK_TOPK, 0, best * s->wide, s->n * s->attr->topk_groups * (s->wide + s->idx));
    top->m = s->n;
    top->n = s->groups;
    top->k = s->attr->topk_groups;
    op_cost_stream(cost, WORK_COPY, 0, 0, best * s->wide);                                      /* zeros */
    op_cost_stream(cost, WORK_GATHER, 0, s->n * s->attr->topk_groups * s->idx, best * s->wide); /* marks */
    op_cost_stream(cost, WORK_STRIDED, 0, best * s->wide, s->n * s->e);                         /* widened to experts */
    op_cost_stream(cost, WORK_ELEMENTWISE, 0, full + s->n * s->e, full);                        /* masked fill */
}

/* Weights of the chosen, the sort of their slots, and the counts with their two reads by the host (bincount). */
static void router_weights_eager(const RouterSize *s, OpCost *cost)
{
    const RouterAttr *attr = s->attr;
    int64_t chosen = s->n * s->k;
    int64_t w = chosen * s->wide;
    Work *top = op_cost_stream(cost, WORK_TOPK, 0, s->n * s->e * s->wide, w + chosen * s->idx);
    top->m = s->n;
    top->n = s->e;
    top->k = s->k;
    op_cost_stream(cost, WORK_ELEMENTWISE, 0, w + chosen * s->idx, w + chosen * s->idx); /* sort of the chosen */
    if (attr->score == ROUTER_TOPK_SOFTMAX) {
        Work *softmax = op_cost_stream(cost, WORK_SOFTMAX, 5 * (double)chosen, w, w);
        softmax->m = s->n;
        softmax->n = s->k;
    } else {
        op_cost_stream(cost, WORK_GATHER, 0, w + chosen * s->idx, w);
    }
    if (router_renorms(attr)) {
        op_cost_stream(cost, WORK_REDUCE, (double)chosen, w, s->n * s->wide);
        op_cost_stream(cost, WORK_STRIDED, (double)chosen, w + s->n * s->wide, w);
    }
    if (attr->scaling != 1) {
        op_cost_stream(cost, WORK_ELEMENTWISE, (double)chosen, w, w);
    }
    Work *sort = op_cost_stream(cost, WORK_SORT, 0, chosen * s->idx, 2 * chosen * s->idx);
    sort->m = 1;
    sort->n = chosen;
    op_cost_stream(cost, WORK_REDUCE, 0, chosen * s->idx, s->idx)->n_launches = 2; /* least and largest index */
    op_cost_stream(cost, WORK_COPY, 0, 0, s->e * s->idx);                          /* zeros */
    op_cost_stream(cost, WORK_REDUCE, 0, chosen * s->idx, s->e * s->idx);          /* histogram */
    cost->n_host_syncs += attr->padded ? 0 : 2; /* buffers of a fixed size need no counts */
    if (router_drops(attr)) { /* place of each slot within its expert, and what lies past the capacity */
        op_cost_stream(cost, WORK_REDUCE, 0, chosen * s->idx, chosen * s->idx);
        op_cost_stream(cost, WORK_ELEMENTWISE, 0, chosen * s->idx, chosen);
        op_cost_stream(cost, WORK_ELEMENTWISE, 0, chosen * (s->idx + 1), chosen * s->idx);
    }
}

static void router_forward_cost(const OpView *view, OpCost *ret_cost)
{
    RouterSize s = router_size(view);
    *ret_cost = (OpCost){0};
    if (!view->op->eager) {
        router_forward_fused(&s, view, ret_cost);
        return;
    }
    op_cost_gemm(ret_cost, WORK_GEMM_NT, op_in(view, 0)->dtype, s.n, s.e, s.h);
    router_scores_eager(&s, ret_cost);
    router_groups_eager(&s, ret_cost);
    router_weights_eager(&s, ret_cost);
    if (view->graph->ep_size == 1) { /* offsets of the grouped GEMM: running sum, cast */
        op_cost_stream(ret_cost, WORK_REDUCE, 0, s.e * s.idx, s.e * s.idx);
        op_cost_stream(ret_cost, WORK_COPY, 0, s.e * s.idx, s.e * 4);
    }
    ret_cost->workspace_bytes = 3 * s.n * s.e * s.wide;
}

/* FLOPs per token from the gradient of the weights to that of the logits (kernels.md 8, moe.md 1.1). */
static double router_backward_flops(const RouterAttr *attr)
{
    double e = (double)attr->experts;
    double k = (double)attr->top_k;
    double flops = attr->scaling == 1 ? 0 : k;
    flops += router_renorms(attr) ? 5 * k + 2 : 0;
    switch (attr->score) {
    case ROUTER_SIGMOID:
        return flops + 3 * k;
    case ROUTER_SOFTMAX:
        return flops + 4 * k + 2 * e;
    case ROUTER_TOPK_SOFTMAX:
    default:
        return flops + 4 * k + (attr->scaling == 1 ? 0 : k);
    }
}

static void router_dlogits_eager(const RouterSize *s, OpCost *cost)
{
    const RouterAttr *attr = s->attr;
    double chosen = (double)(s->n * s->k);
    int64_t w = s->n * s->k * s->wide;
    int64_t col = s->n * s->wide;
    int64_t full = s->n * s->e * s->wide;
    if (attr->scaling != 1) {
        op_cost_stream(cost, WORK_ELEMENTWISE, chosen, w, w);
    }
    if (router_renorms(attr)) {
        op_cost_stream(cost, WORK_STRIDED, chosen, w + col, w)->n_launches = 3; /* dw / sum; (w / sum) / sum */
        op_cost_stream(cost, WORK_ELEMENTWISE, chosen, w, w);                   /* -dw */
        op_cost_stream(cost, WORK_ELEMENTWISE, chosen, 2 * w, w);
        op_cost_stream(cost, WORK_REDUCE, chosen, w, col);
        op_cost_stream(cost, WORK_STRIDED, chosen, w + col, w); /* both ways to the scores meet */
    }
    if (attr->score == ROUTER_TOPK_SOFTMAX) {
        Work *softmax = op_cost_stream(cost, WORK_SOFTMAX, 4 * chosen, 2 * w, w);
        softmax->m = s->n;
        softmax->n = s->k;
    }
    op_cost_stream(cost, WORK_COPY, 0, 0, full); /* zeros */
    op_cost_stream(cost, WORK_SCATTER_ADD, chosen, 2 * w + s->n * s->k * s->idx, w);
    if (attr->score == ROUTER_SOFTMAX) {
        Work *softmax = op_cost_stream(cost, WORK_SOFTMAX, 4 * (double)(s->n * s->e), 2 * full, full);
        softmax->m = s->n;
        softmax->n = s->e;
    } else if (attr->score == ROUTER_SIGMOID) {
        op_cost_stream(cost, WORK_ELEMENTWISE, 3 * (double)(s->n * s->e), 2 * full, full);
    }
    if (attr->emit_logits) {
        op_cost_stream(cost, WORK_ELEMENTWISE, (double)(s->n * s->e), 2 * full, full);
    }
    op_cost_stream(cost, WORK_COPY, 0, full, s->n * s->e * s->b); /* to the compute type */
    cost->workspace_bytes = 2 * full;
}

static void router_dlogits_fused(const RouterSize *s, const OpView *view, OpCost *cost)
{
    OpSaved saved;
    router_saved(view, &saved);
    int64_t kept = s->n * (saved.n_aux > 0 ? saved.aux[0].width : s->k);
    int64_t extra = s->attr->emit_logits ? s->n * s->e : 0;
    op_cost_stream(cost, WORK_SOFTMAX, (double)s->n * router_backward_flops(s->attr) + (double)extra,
                   (s->n * s->k + kept + extra) * s->wide + s->n * s->k * s->idx, s->n * s->e * s->wide);
    cost->workspace_bytes = s->n * s->e * s->wide;
}

static void router_backward_cost(const OpView *view, OpCost *ret_cost)
{
    RouterSize s = router_size(view);
    Dtype compute = op_in(view, 0)->dtype;
    int64_t dlogit = view->op->eager ? s.b : s.wide; /* bytes of one logit's gradient */
    *ret_cost = (OpCost){0};
    if (!op_has_backward(view)) {
        return;
    }
    if (view->op->eager) {
        router_dlogits_eager(&s, ret_cost);
    } else {
        router_dlogits_fused(&s, view, ret_cost);
    }
    if (op_needs_input_grad(view, 0)) {
        Work *dx = op_cost_gemm(ret_cost, WORK_GEMM_NN, compute, s.n, s.h, s.e);
        dx->read_bytes = s.n * s.e * dlogit + s.e * s.h * s.b;
    }
    if (op_trains_param(view, 0)) {
        Work *dw = op_cost_gemm(ret_cost, WORK_GEMM_TN, compute, s.e, s.h, s.n);
        dw->read_bytes = s.n * s.e * dlogit + s.n * s.h * s.b;
    }
    if (op_trains_param(view, 2)) {
        op_cost_stream(ret_cost, WORK_REDUCE, (double)(s.n * s.e), s.n * s.e * dlogit, s.e * s.b);
    }
}

static gboolean router_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        int64_t tokens, hidden;
        RouterAttr attr;
    } samples[] = {
        {5, 7, {.experts = 6, .top_k = 2, .score = ROUTER_SIGMOID, .renorm = TRUE, .scaling = 1, .bias_buffer = TRUE}},
        {4,
         3,
         {.experts = 8,
          .top_k = 3,
          .score = ROUTER_SOFTMAX,
          .scaling = 16,
          .groups = 4,
          .topk_groups = 2,
          .group_score = ROUTER_GROUP_MAX,
          .emit_logits = TRUE}},
        {6, 5, {.experts = 5, .top_k = 2, .score = ROUTER_TOPK_SOFTMAX, .scaling = 2.5, .linear_bias = TRUE}},
        {3, 4, {.experts = 4, .top_k = 4, .score = ROUTER_SOFTMAX, .renorm = TRUE, .scaling = 1}},
        {1,
         2,
         {.experts = 6,
          .top_k = 1,
          .score = ROUTER_SIGMOID,
          .renorm = TRUE,
          .scaling = 2.5,
          .groups = 3,
          .topk_groups = 1,
          .group_score = ROUTER_GROUP_SUM2,
          .bias_buffer = TRUE}},
        {9,
         3,
         {.experts = 3,
          .top_k = 2,
          .score = ROUTER_SIGMOID,
          .scaling = 1,
          .capacity = {.factor = 0.8},
          .drop = MOE_DROP_PROBS}},
    };
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    rows->rows[ROWS_TOKENS] = samples[idx].tokens;
    rows->rows[ROWS_EXPERTS] = samples[idx].attr.experts;
    rows->rows[ROWS_SLOTS] = samples[idx].tokens * samples[idx].attr.top_k;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, samples[idx].hidden, graph->compute, TRUE);
    RouterTensors t = router_add(graph, "gate", x, &samples[idx].attr);
    graph_add_output(graph, t.weights);
    if (t.logits >= 0) {
        graph_add_output(graph, t.logits);
    }
    return TRUE;
}

extern const OpClass op_router;
const OpClass op_router = {
    .id = "router",
    .title = "router",
    .counts_output = ROUTER_COUNTS + 1,
    .padded_slots = router_padded_slots,
    .no_grad_outputs = 1u << ROUTER_SEL | 1u << ROUTER_ORDER | 1u << ROUTER_COUNTS,
    .saved = router_saved,
    .forward_cost = router_forward_cost,
    .backward_cost = router_backward_cost,
    .forward = REAL_KERNELS(router_forward),
    .backward = REAL_KERNELS(router_backward),
    .sample = router_sample,
};
#endif
