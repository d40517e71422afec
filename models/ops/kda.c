#include "models/ops/kda.h"

#include <string.h>

#include "models/delta-eager.h"
#include "models/delta-op.h"
#include "models/delta-rule.h"
#include "models/op.h"
#include "models/real-math.h"
#include "models/real.h"
#include "models/sequences.h"

REAL_DECLARE(kda_forward);
REAL_DECLARE(kda_backward);

enum { KDA_O, KDA_LAST_STATE, KDA_A_LOG = 0, KDA_DT_BIAS };
enum { KDA_AUX_A, KDA_AUX_P, KDA_AUX_Q, KDA_AUX_K, KDA_AUX_Q_NORM, KDA_AUX_K_NORM };

static DeltaShape kda_shape(const KdaAttr *attr)
{
    return (DeltaShape){
        attr->heads, attr->value_heads, attr->key_dim, attr->value_dim, attr->chunk > 0 ? attr->chunk : DELTA_CHUNK,
        TRUE};
}

KdaGatePoint REAL_NAME(kda_gate_at)(const KdaAttr *attr, real exp_a, real x)
{
    if (attr->gate == KDA_GATE_BOUNDED) {
        real s = real_sigmoid(exp_a * x), g = (real)attr->lower_bound * s, slope = g * (1 - s);
        return (KdaGatePoint){g, slope * exp_a, slope * (exp_a * x)};
    }
    real g = -exp_a * real_softplus(x);
    return (KdaGatePoint){g, -exp_a * real_sigmoid(x), g};
}

void REAL_NAME(kda_gate_run)(const KdaAttr *attr, const KdaGateTensors *tensors)
{
    int64_t dk = attr->key_dim, width = attr->value_heads * dk, n = tensor_numel(tensors->z);
    const real *z = real_data_const(tensors->z), *a_log = real_data_const(tensors->a_log);
    const real *dt = real_data_const(tensors->dt_bias), *dg = real_data_const(tensors->dg);
    real *g = real_data(tensors->g), *dz = real_data(tensors->dz);
    real *da_log = real_data(tensors->da_log), *ddt = real_data(tensors->ddt_bias);
    memset(da_log, 0, (size_t)attr->value_heads * sizeof *da_log);
    memset(ddt, 0, (size_t)width * sizeof *ddt);
    for (int64_t i = 0; i < n; i++) {
        int64_t channel = i % width, head = channel / dk;
        KdaGatePoint at = REAL_NAME(kda_gate_at)(attr, real_exp(a_log[head]), z[i] + dt[channel]);
        g[i] = at.g;
        dz[i] = dg[i] * at.slope_z;
        da_log[head] += dg[i] * at.slope_a;
        ddt[channel] += dz[i];
    }
}

/* FLOPs per element of the gate's value, and of its slopes with the three gradients. */
static double kda_gate_flops(const KdaAttr *attr, gboolean slopes)
{
    if (attr->gate == KDA_GATE_NONE) {
        return 0;
    }
    return attr->gate == KDA_GATE_BOUNDED ? (slopes ? 12 : 4) : (slopes ? 11 : 5);
}

static real kda_beta_scale(const KdaAttr *attr)
{
    return attr->beta_scale > 0 ? (real)attr->beta_scale : 1;
}

/* One sequence and value head: where it lies, and dense copies. */
typedef struct KdaHead {
    DeltaArrays arrays;
    int64_t start, sequence, head, key_head;
    real exp_a;
} KdaHead;

/* Decays and write strengths of the head's rows. */
static void kda_head_gates(const OpRun *run, const DeltaShape *shape, KdaHead *head)
{
    const KdaAttr *attr = run->view->op->attr;
    int64_t dk = shape->key_dim, heads = shape->value_heads;
    const real *z = real_data_const(run->in[DELTA_IN_GATE]), *logit = real_data_const(run->in[DELTA_IN_BETA]);
    const real *dt = real_data_const(run->param[KDA_DT_BIAS]);
    for (int64_t t = 0; t < head->arrays.rule.n; t++) {
        int64_t row = (head->start + t) * heads + head->head;
        for (int64_t d = 0; d < dk; d++) {
            real raw = z[row * dk + d];
            real g = attr->gate == KDA_GATE_NONE
                         ? raw
                         : REAL_NAME(kda_gate_at)(attr, head->exp_a, raw + dt[head->head * dk + d]).g;
            head->arrays.w[t * dk + d] = real_exp(g);
        }
        head->arrays.beta[t] =
            attr->gate == KDA_GATE_NONE ? logit[row] : kda_beta_scale(attr) * real_sigmoid(logit[row]);
    }
}

/* Fills the dense copies; q and k come normed (or raw, without a gate). */
static void kda_head_load(const OpRun *run, const DeltaShape *shape, const real *q, const real *k, KdaHead *head)
{
    int64_t dk = shape->key_dim, dv = shape->value_dim, key_stride = shape->heads * dk,
            value_stride = shape->value_heads * dv;
    int64_t at = head->start * key_stride + head->key_head * dk, n = head->arrays.rule.n;
    const real *v = real_data_const(run->in[DELTA_IN_V]), *state = real_data_const(run->in[DELTA_IN_STATE]);
    const real *a_log = real_data_const(run->param[KDA_A_LOG]);
    real scale = 1 / real_sqrt((real)dk);
    head->exp_a = a_log != NULL ? real_exp(a_log[head->head]) : 0;
    REAL_NAME(delta_gather)(q + at, key_stride, n, dk, head->arrays.q);
    REAL_NAME(delta_gather)(k + at, key_stride, n, dk, head->arrays.k);
    REAL_NAME(delta_gather)(v + head->start * value_stride + head->head * dv, value_stride, n, dv, head->arrays.v);
    for (int64_t i = 0; i < n * dk; i++) {
        head->arrays.q[i] *= scale;
    }
    kda_head_gates(run, shape, head);
    head->arrays.rule.state =
        state != NULL ? state + (head->sequence * shape->value_heads + head->head) * dk * dv : NULL;
}

/* Work on one head; adds FLOPs to what it returns. */
typedef double (*KdaVisit)(const OpRun *run, const DeltaShape *shape, KdaHead *head, void *data);

/* Visits every head of every sequence. */
static double kda_each_head(const OpRun *run, const real *q, const real *k, KdaVisit visit, void *data)
{
    DeltaShape shape = kda_shape(run->view->op->attr);
    double flops = 0;
    int64_t n_sequences = sequences_count(run->view->rows, ROWS_TOKENS);
    for (int64_t s = 0; s < n_sequences; s++) {
        int64_t start = sequences_start(run->view->rows, ROWS_TOKENS, s);
        int64_t n = sequences_start(run->view->rows, ROWS_TOKENS, s + 1) - start;
        KdaHead head = {.start = start, .sequence = s};
        REAL_NAME(delta_arrays_init)(&head.arrays, &shape, n);
        for (int64_t h = 0; h < shape.value_heads; h++) {
            head.head = h;
            head.key_head = h / (shape.value_heads / shape.heads);
            kda_head_load(run, &shape, q, k, &head);
            flops += visit(run, &shape, &head, data);
        }
        REAL_NAME(delta_arrays_clear)(&head.arrays);
    }
    return flops;
}

static double kda_head_forward(const OpRun *run, const DeltaShape *shape, KdaHead *head, void *data)
{
    const OpRun *chain = data; /* keeps what framework operators do; or NULL */
    const KdaAttr *attr = run->view->op->attr;
    int64_t n = head->arrays.rule.n, dv = shape->value_dim, pair_stride = shape->value_heads * shape->chunk;
    real *last_state = REAL_NAME(delta_state_of)(run->out[KDA_LAST_STATE], shape, head->sequence, head->head),
         *o = real_data(run->out[KDA_O]);
    double flops = 0;
    if (attr->recurrent) {
        REAL_NAME(delta_recurrent_forward)(&head->arrays.rule, head->arrays.o, last_state);
    } else {
        int64_t pair_at = head->start * pair_stride + head->head * shape->chunk;
        flops += REAL_NAME(delta_pairs_forward)(&head->arrays.rule, head->arrays.a, head->arrays.p);
        flops += REAL_NAME(delta_chunk_forward)(&head->arrays.rule, head->arrays.o, last_state);
        REAL_NAME(delta_scatter)
        (head->arrays.a, n, shape->chunk, real_data(run->aux[KDA_AUX_A]) + pair_at, pair_stride);
        REAL_NAME(delta_scatter)
        (head->arrays.p, n, shape->chunk, real_data(run->aux[KDA_AUX_P]) + pair_at, pair_stride);
    }
    o += (head->start * shape->value_heads + head->head) * dv;
    REAL_NAME(delta_scatter)(head->arrays.o, n, dv, o, shape->value_heads * dv);
    if (chain != NULL && !attr->recurrent) {
        REAL_NAME(delta_eager_keep)(chain, shape, &head->arrays, head->start, head->head);
    }
    return flops;
}

/* What the fused form keeps of an eager operator's run. */
static void kda_enter(const OpRun *run, DeltaEager *ret_eager)
{
    const KdaAttr *attr = run->view->op->attr;
    DeltaOp op = {.shape = kda_shape(attr), .pair_heads = attr->value_heads, .normed = attr->gate != KDA_GATE_NONE};
    OpSaved fused;
    delta_fused_saved(run->view, &op, &fused);
    REAL_NAME(delta_eager_enter)(run, &op.shape, &fused, ret_eager);
}

/* chain: the eager operator's own run, or NULL. */
static void kda_run_forward(const OpRun *run, const OpRun *chain)
{
    const KdaAttr *attr = run->view->op->attr;
    const real *q = real_data_const(run->in[DELTA_IN_Q]), *k = real_data_const(run->in[DELTA_IN_K]);
    int64_t tokens = op_rows(run->view, ROWS_TOKENS), n_vectors = tokens * attr->heads, dk = attr->key_dim;
    double flops =
        (double)(tokens * attr->value_heads * dk) * (kda_gate_flops(attr, FALSE) + 2); /* decay; q times scale */
    if (attr->gate != KDA_GATE_NONE) {
        real *q_normed = real_data(run->aux[KDA_AUX_Q]), *k_normed = real_data(run->aux[KDA_AUX_K]);
        REAL_NAME(delta_norm_forward)(q, n_vectors, dk, q_normed, real_data(run->aux[KDA_AUX_Q_NORM]));
        REAL_NAME(delta_norm_forward)(k, n_vectors, dk, k_normed, real_data(run->aux[KDA_AUX_K_NORM]));
        q = q_normed;
        k = k_normed;
        flops += 2.0 * (double)n_vectors * (3.0 * (double)dk + 2) + 2.0 * (double)(tokens * attr->value_heads) +
                 (double)attr->value_heads;
    }
    flops += kda_each_head(run, q, k, kda_head_forward, (void *)(guintptr)chain);
    op_count(run, flops,
             REAL_NAME(delta_numel_const)(run->in, OP_INPUTS_MAX) +
                 REAL_NAME(delta_numel_const)(run->param, OP_PARAMS_MAX),
             REAL_NAME(delta_numel)(run->out, OP_OUTPUTS_MAX) + REAL_NAME(delta_numel)(run->aux, OP_AUX_MAX));
}

gboolean REAL_NAME(kda_forward)(const OpRun *run, GError **error)
{
    (void)error;
    if (!run->view->op->eager) {
        kda_run_forward(run, NULL);
        return TRUE;
    }
    DeltaEager eager;
    kda_enter(run, &eager);
    kda_run_forward(&eager.run, run);
    REAL_NAME(delta_eager_leave)(&eager);
    return TRUE;
}

/* Gradients over all tokens that heads add to; the raw results of one head. */
typedef struct KdaBackward {
    real *dq, *dk;      /* [tokens, heads x dk], at the normed q and k */
    real *da_log, *ddt; /* or NULL */
    const OpRun *chain; /* an eager operator's own run, or NULL */
} KdaBackward;

/* From g and beta to z, A_log, dt_bias and the logits. */
static void kda_head_gates_backward(const OpRun *run, const DeltaShape *shape, const KdaHead *head,
                                    const DeltaGradients *grads, KdaBackward *sums)
{
    const KdaAttr *attr = run->view->op->attr;
    int64_t dk = shape->key_dim, heads = shape->value_heads, h = head->head;
    const real *z = real_data_const(run->in[DELTA_IN_GATE]), *logit = real_data_const(run->in[DELTA_IN_BETA]);
    const real *dt = real_data_const(run->param[KDA_DT_BIAS]);
    real *dz = real_data(run->din[DELTA_IN_GATE]), *dlogit = real_data(run->din[DELTA_IN_BETA]), scale = kda_beta_scale(attr);
    gboolean raw = attr->gate == KDA_GATE_NONE;
    for (int64_t t = 0; t < head->arrays.rule.n; t++) {
        int64_t row = (head->start + t) * heads + h;
        for (int64_t d = 0; d < dk; d++) {
            real dg = grads->g[t * dk + d];
            KdaGatePoint at = {dg, 1, 0};
            if (!raw) {
                at = REAL_NAME(kda_gate_at)(attr, head->exp_a, z[row * dk + d] + dt[h * dk + d]);
                sums->da_log[h] += dg * at.slope_a;
                sums->ddt[h * dk + d] += dg * at.slope_z;
            }
            if (dz != NULL) {
                dz[row * dk + d] = dg * at.slope_z;
            }
        }
        if (dlogit != NULL) {
            real s = raw ? 0 : real_sigmoid(logit[row]);
            dlogit[row] = raw ? grads->beta[t] : grads->beta[t] * scale * s * (1 - s);
        }
    }
}

static double kda_rule_backward(const KdaAttr *attr, const KdaHead *head, const DeltaUpstream *up,
                                const DeltaGradients *grads)
{
    if (attr->recurrent) {
        REAL_NAME(delta_recurrent_backward)(&head->arrays.rule, up, grads);
        return 0;
    }
    double flops = REAL_NAME(delta_chunk_backward)(&head->arrays.rule, up, grads);
    flops += REAL_NAME(delta_pairs_backward)(&head->arrays.rule, grads);
    return flops + REAL_NAME(delta_decay_finish)(&head->arrays.rule, grads->g);
}

/* Adds a head's gradients of q (scaled) and k to those of its key head. */
static void kda_head_keys_backward(const DeltaShape *shape, const KdaHead *head, const DeltaGradients *grads,
                                   KdaBackward *sums)
{
    int64_t dk = shape->key_dim;
    real scale = 1 / real_sqrt((real)dk);
    for (int64_t t = 0; t < head->arrays.rule.n; t++) {
        int64_t at = ((head->start + t) * shape->heads + head->key_head) * dk;
        for (int64_t d = 0; d < dk; d++) {
            sums->dq[at + d] += scale * grads->q[t * dk + d];
            sums->dk[at + d] += grads->k[t * dk + d];
        }
    }
}

static double kda_head_backward(const OpRun *run, const DeltaShape *shape, KdaHead *head, void *data)
{
    KdaBackward *sums = data;
    int64_t n = head->arrays.rule.n, dv = shape->value_dim, pair_stride = shape->value_heads * shape->chunk;
    int64_t pair_at = head->start * pair_stride + head->head * shape->chunk, value_stride = shape->value_heads * dv;
    int64_t value_at = head->start * value_stride + head->head * dv;
    const real *d_o = real_data_const(run->dout[KDA_O]);
    DeltaArrays grad; /* the same arrays again, for gradients */
    REAL_NAME(delta_arrays_init)(&grad, shape, n);
    REAL_NAME(delta_gather)
    (real_data_const(run->aux[KDA_AUX_A]) + pair_at, pair_stride, n, shape->chunk, head->arrays.a);
    REAL_NAME(delta_gather)
    (real_data_const(run->aux[KDA_AUX_P]) + pair_at, pair_stride, n, shape->chunk, head->arrays.p);
    if (sums->chain != NULL) {
        REAL_NAME(delta_eager_pairs)(sums->chain, shape, head->start, head->head, &head->arrays);
    }
    if (d_o != NULL) {
        REAL_NAME(delta_gather)(d_o + value_at, value_stride, n, dv, grad.o);
    }
    const Tensor *dlast = run->dout[KDA_LAST_STATE];
    int64_t state_at = (head->sequence * shape->value_heads + head->head) * shape->key_dim * dv;
    DeltaUpstream up = {d_o != NULL ? grad.o : NULL, dlast != NULL ? real_data_const(dlast) + state_at : NULL};
    DeltaGradients grads = {.q = grad.q,
                            .k = grad.k,
                            .g = grad.w,
                            .v = grad.v,
                            .beta = grad.beta,
                            .a = grad.a,
                            .p = grad.p,
                            .state = REAL_NAME(delta_state_of)(run->din[DELTA_IN_STATE], shape, head->sequence, head->head)};
    double flops = kda_rule_backward(run->view->op->attr, head, &up, &grads);
    if (run->din[DELTA_IN_V] != NULL) {
        REAL_NAME(delta_scatter)(grad.v, n, dv, real_data(run->din[DELTA_IN_V]) + value_at, value_stride);
    }
    kda_head_keys_backward(shape, head, &grads, sums);
    kda_head_gates_backward(run, shape, head, &grads, sums);
    REAL_NAME(delta_arrays_clear)(&grad);
    return flops;
}

/* FLOPs around the core: gates and decays, q times scale, sums over value heads, norms, write strength. */
static double kda_outer_backward_flops(const KdaAttr *attr, int64_t tokens)
{
    double dk = (double)attr->key_dim, rows = (double)(tokens * attr->value_heads);
    double flops = rows * dk * (kda_gate_flops(attr, TRUE) + 5);
    if (attr->gate != KDA_GATE_NONE) {
        flops += 10.0 * (double)(tokens * attr->heads) * dk + 6 * rows + (double)attr->value_heads;
    }
    return flops;
}

/* Gradients of the normed q and k to those of the raw ones. */
static void kda_norms_backward(const OpRun *run, const KdaBackward *sums, int64_t n_vectors)
{
    const KdaAttr *attr = run->view->op->attr;
    real *const dnormed[] = {sums->dq, sums->dk};
    const int inputs[] = {DELTA_IN_Q, DELTA_IN_K}, normed[] = {KDA_AUX_Q, KDA_AUX_K}, norms[] = {KDA_AUX_Q_NORM, KDA_AUX_K_NORM};
    for (int i = 0; i < 2; i++) {
        if (attr->gate != KDA_GATE_NONE) {
            const real *y = real_data_const(run->aux[normed[i]]), *r = real_data_const(run->aux[norms[i]]);
            REAL_NAME(delta_norm_backward)(y, r, n_vectors, attr->key_dim, dnormed[i]);
        }
        if (run->din[inputs[i]] != NULL) {
            memcpy(run->din[inputs[i]]->data, dnormed[i], (size_t)(n_vectors * attr->key_dim) * sizeof(real));
        }
    }
}

static void kda_run_backward(const OpRun *run, const OpRun *chain)
{
    const KdaAttr *attr = run->view->op->attr;
    int64_t tokens = op_rows(run->view, ROWS_TOKENS), n_vectors = tokens * attr->heads, n = n_vectors * attr->key_dim;
    gboolean raw = attr->gate == KDA_GATE_NONE;
    g_autofree real *dq = g_new0(real, (gsize)(n + 1)), *dk = g_new0(real, (gsize)(n + 1));
    g_autofree real *da_log = g_new0(real, (gsize)attr->value_heads);
    g_autofree real *ddt = g_new0(real, (gsize)(attr->value_heads * attr->key_dim));
    KdaBackward sums = {dq, dk, da_log, ddt, chain};
    const real *q = real_data_const(raw ? run->in[DELTA_IN_Q] : run->aux[KDA_AUX_Q]);
    const real *k = real_data_const(raw ? run->in[DELTA_IN_K] : run->aux[KDA_AUX_K]);
    double flops = kda_each_head(run, q, k, kda_head_backward, &sums);
    kda_norms_backward(run, &sums, n_vectors);
    if (run->dparam[KDA_A_LOG] != NULL) {
        memcpy(run->dparam[KDA_A_LOG]->data, da_log, (size_t)attr->value_heads * sizeof *da_log);
    }
    if (run->dparam[KDA_DT_BIAS] != NULL) {
        memcpy(run->dparam[KDA_DT_BIAS]->data, ddt, (size_t)(attr->value_heads * attr->key_dim) * sizeof *ddt);
    }
    int64_t read =
        REAL_NAME(delta_numel_const)(run->in, OP_INPUTS_MAX) + REAL_NAME(delta_numel_const)(run->param, OP_PARAMS_MAX);
    read += REAL_NAME(delta_numel_const)(run->dout, OP_OUTPUTS_MAX) + REAL_NAME(delta_numel)(run->aux, OP_AUX_MAX);
    op_count(run, flops + kda_outer_backward_flops(attr, tokens), read,
             REAL_NAME(delta_numel)(run->din, OP_INPUTS_MAX) + REAL_NAME(delta_numel)(run->dparam, OP_PARAMS_MAX));
}

gboolean REAL_NAME(kda_backward)(const OpRun *run, GError **error)
{
    (void)error;
    const KdaAttr *attr = run->view->op->attr;
    if (!run->view->op->eager) {
        kda_run_backward(run, NULL);
        return TRUE;
    }
    DeltaEager eager;
    kda_enter(run, &eager);
    if (attr->gate != KDA_GATE_NONE) { /* from the kept q and k: their norms are part of the chain */
        int64_t n = op_rows(run->view, ROWS_TOKENS) * attr->heads;
        REAL_NAME(delta_norm_forward)
        (real_data_const(run->in[DELTA_IN_Q]), n, attr->key_dim, real_data(eager.run.aux[KDA_AUX_Q]),
         real_data(eager.run.aux[KDA_AUX_Q_NORM]));
        REAL_NAME(delta_norm_forward)
        (real_data_const(run->in[DELTA_IN_K]), n, attr->key_dim, real_data(eager.run.aux[KDA_AUX_K]),
         real_data(eager.run.aux[KDA_AUX_K_NORM]));
    }
    kda_run_backward(&eager.run, run);
    REAL_NAME(delta_eager_leave)(&eager);
    return TRUE;
}

#if REAL_HAS_CLASS
int kda_add(Graph *graph, const char *prefix, const int qkvzb[5], const KdaAttr *attr)
{
    DeltaShape shape = kda_shape(attr);
    return delta_op_add(graph, OP_kda, prefix, qkvzb, &shape, attr->gate != KDA_GATE_NONE ? attr->value_heads * attr->key_dim : 0, attr,
                        sizeof *attr);
}

/* Around the core: norms 3 d + 2 per key head; gate, decay and scale per channel; write strength 2; exp(A_log). */
static double kda_outer_forward_flops(const KdaAttr *attr, int64_t tokens)
{
    double dk = (double)attr->key_dim, rows = (double)(tokens * attr->value_heads);
    double flops = rows * dk * (kda_gate_flops(attr, FALSE) + 2);
    if (attr->gate != KDA_GATE_NONE) {
        flops += 2 * (double)(tokens * attr->heads) * (3 * dk + 2) + 2 * rows + (double)attr->value_heads;
    }
    return flops;
}

static DeltaOp kda_describe(const OpView *view)
{
    const KdaAttr *attr = view->op->attr;
    int64_t tokens = op_rows(view, ROWS_TOKENS);
    return (DeltaOp){.shape = kda_shape(attr),
                     .pair_heads = attr->value_heads,
                     .normed = attr->gate != KDA_GATE_NONE,
                     .forward_flops = kda_outer_forward_flops(attr, tokens),
                     .backward_flops = kda_outer_backward_flops(attr, tokens)};
}

static void kda_saved(const OpView *view, OpSaved *ret_saved)
{
    DeltaOp op = kda_describe(view);
    delta_op_saved(view, &op, ret_saved);
}

static void kda_forward_cost(const OpView *view, OpCost *ret_cost)
{
    DeltaOp op = kda_describe(view);
    delta_op_forward_cost(view, &op, ret_cost);
}

static void kda_backward_cost(const OpView *view, OpCost *ret_cost)
{
    DeltaOp op = kda_describe(view);
    delta_op_backward_cost(view, &op, ret_cost);
}

static gboolean kda_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        KdaAttr attr;
        DeltaSample sample;
    } samples[] = {
        {{2, 2, 4, 3, 8, KDA_GATE_BOUNDED, -5, 1, FALSE}, {1, 12, TRUE}},
        {{1, 2, 3, 4, 4, KDA_GATE_SOFTPLUS, 0, 2, FALSE}, {2, 9, FALSE}},   /* grouped heads, two sequences */
        {{1, 1, 5, 2, 64, KDA_GATE_BOUNDED, -5, 1, FALSE}, {1, 37, FALSE}}, /* three sub-chunks, ragged */
        {{1, 1, 2, 2, 0, KDA_GATE_SOFTPLUS, 0, 1, FALSE}, {1, 65, FALSE}},
        {{1, 2, 3, 2, 32, KDA_GATE_NONE, 0, 0, FALSE}, {1, 33, TRUE}},
        {{1, 1, 1, 1, 0, KDA_GATE_BOUNDED, -5, 1, FALSE}, {1, 1, FALSE}},
    };
    int inputs[DELTA_N_IN];
    if (idx < 0 || idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    const KdaAttr *attr = &samples[idx].attr;
    DeltaShape shape = kda_shape(attr);
    delta_op_sample_inputs(graph, &shape, "z", attr->value_heads * attr->key_dim, inputs);
    delta_op_sample_finish(graph, &shape, &samples[idx].sample, kda_add(graph, "attn", inputs, attr), rows);
    return TRUE;
}

extern const OpClass op_kda;
const OpClass op_kda = {
    .id = "kda",
    .title = "KDA",
    .saved = kda_saved,
    .forward_cost = kda_forward_cost,
    .backward_cost = kda_backward_cost,
    .forward = REAL_KERNELS(kda_forward),
    .backward = REAL_KERNELS(kda_backward),
    .sample = kda_sample,
};
#endif
