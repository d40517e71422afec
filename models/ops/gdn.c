#include "models/ops/gdn.h"

#include <string.h>

#include "models/delta-eager.h"
#include "models/delta-op.h"
#include "models/delta-rule.h"
#include "models/matmul.h"
#include "models/op.h"
#include "models/real-math.h"
#include "models/real.h"
#include "models/sequences.h"

REAL_DECLARE(gdn_forward);
REAL_DECLARE(gdn_backward);

enum { GDN_O, GDN_LAST_STATE, GDN_A_LOG = 0, GDN_DT_BIAS };
enum { GDN_AUX_QK, GDN_AUX_KK, GDN_AUX_Q, GDN_AUX_K, GDN_AUX_Q_NORM, GDN_AUX_K_NORM };

static DeltaShape gdn_shape(const GdnAttr *attr)
{
    return (DeltaShape){
        attr->heads, attr->value_heads, attr->key_dim, attr->value_dim, attr->chunk > 0 ? attr->chunk : DELTA_CHUNK,
        FALSE};
}

/* One sequence and value head, with the products that its key head shares among value heads. */
typedef struct GdnHead {
    DeltaArrays arrays;
    int64_t start, sequence, head, key_head;
    real *qk, *kk; /* [n, chunk] */
    real *decay;   /* [n, chunk] decay from row i to row r */
} GdnHead;

/* q (scaled) and k of a key head, and their products inside chunks. */
static void gdn_load_keys(const OpRun *run, const DeltaShape *shape, GdnHead *head)
{
    int64_t dk = shape->key_dim, stride = shape->heads * dk, at = head->start * stride + head->key_head * dk;
    int64_t n = head->arrays.rule.n;
    real scale = 1 / real_sqrt((real)dk);
    REAL_NAME(delta_gather)(real_data_const(run->aux[GDN_AUX_Q]) + at, stride, n, dk, head->arrays.q);
    REAL_NAME(delta_gather)(real_data_const(run->aux[GDN_AUX_K]) + at, stride, n, dk, head->arrays.k);
    for (int64_t i = 0; i < n * dk; i++) {
        head->arrays.q[i] *= scale;
    }
}

/* Causal products; pairs count. */
static double gdn_products(const DeltaShape *shape, GdnHead *head)
{
    int64_t dk = shape->key_dim, ld = shape->chunk, n = head->arrays.rule.n;
    double flops = 0;
    memset(head->qk, 0, (size_t)(n * ld) * sizeof *head->qk);
    memset(head->kk, 0, (size_t)(n * ld) * sizeof *head->kk);
    for (int64_t start = 0; start < n; start += ld) {
        int64_t c = MIN(ld, n - start);
        Matmul product = {.m = c, .n = c, .k = dk, .trans_b = TRUE, .lda = dk, .ldb = dk, .ldc = ld, .alpha = 1};
        const real *q = head->arrays.q + start * dk, *k = head->arrays.k + start * dk;
        REAL_NAME(matmul)(&product, q, k, head->qk + start * ld);
        REAL_NAME(matmul)(&product, k, k, head->kk + start * ld);
        flops += (double)(c * (c + 1) * dk) + (double)(c * (c - 1) * dk);
    }
    return flops;
}

/* Gates of a value head: g = -exp(A_log) softplus(a + dt_bias), spread over the key channels, and beta. */
static void gdn_load_values(const OpRun *run, const DeltaShape *shape, GdnHead *head)
{
    int64_t dk = shape->key_dim, dv = shape->value_dim, heads = shape->value_heads, n = head->arrays.rule.n,
            h = head->head;
    const real *a = real_data_const(run->in[DELTA_IN_GATE]), *logit = real_data_const(run->in[DELTA_IN_BETA]);
    const real *v = real_data_const(run->in[DELTA_IN_V]), *state = real_data_const(run->in[DELTA_IN_STATE]);
    real exp_a = real_exp(real_data_const(run->param[GDN_A_LOG])[h]), dt = real_data_const(run->param[GDN_DT_BIAS])[h];
    REAL_NAME(delta_gather)(v + (head->start * heads + h) * dv, heads * dv, n, dv, head->arrays.v);
    for (int64_t t = 0; t < n; t++) {
        int64_t row = (head->start + t) * heads + h;
        real w = real_exp(-exp_a * real_softplus(a[row] + dt));
        head->arrays.beta[t] = real_sigmoid(logit[row]);
        for (int64_t d = 0; d < dk; d++) {
            head->arrays.w[t * dk + d] = w;
        }
    }
    head->arrays.rule.state = state != NULL ? state + (head->sequence * heads + h) * dk * dv : NULL;
}

/* Pair matrices of a value head: the shared products times the decay between the rows. 3 operations per pair. */
static double gdn_decay_pairs(const DeltaShape *shape, GdnHead *head)
{
    int64_t dk = shape->key_dim, ld = shape->chunk, n = head->arrays.rule.n, n_pairs = 0;
    size_t bytes = (size_t)(n * ld) * sizeof(real);
    memset(head->decay, 0, bytes);
    memset(head->arrays.a, 0, bytes);
    memset(head->arrays.p, 0, bytes);
    for (int64_t t = 0; t < n; t++) {
        int64_t r = t % ld;
        real w = head->arrays.w[t * dk];
        for (int64_t i = 0; i < r; i++) {
            real decay = i == r - 1 ? w : head->decay[(t - 1) * ld + i] * w;
            head->decay[t * ld + i] = decay;
            head->arrays.a[t * ld + i] = decay * head->kk[t * ld + i];
            head->arrays.p[t * ld + i] = decay * head->qk[t * ld + i];
        }
        head->arrays.p[t * ld + r] = head->qk[t * ld + r];
        n_pairs += r;
    }
    return 3.0 * (double)n_pairs;
}

typedef double (*GdnVisit)(const OpRun *run, const DeltaShape *shape, GdnHead *head, void *data);

/* Calls keys() once per sequence and key head, then values() for each of its value heads, then finish() if any. */
typedef struct GdnVisits {
    GdnVisit keys, values, finish;
} GdnVisits;

static double gdn_each_head(const OpRun *run, const GdnVisits *visits, void *data)
{
    DeltaShape shape = gdn_shape(run->view->op->attr);
    int64_t group = shape.value_heads / shape.heads, n_sequences = sequences_count(run->view->rows, ROWS_TOKENS);
    double flops = 0;
    for (int64_t i = 0; i < n_sequences * shape.heads; i++) {
        int64_t s = i / shape.heads, start = sequences_start(run->view->rows, ROWS_TOKENS, s);
        int64_t n = sequences_start(run->view->rows, ROWS_TOKENS, s + 1) - start;
        g_autofree real *pairs = g_new(real, (gsize)(3 * n * shape.chunk + 1));
        GdnHead head = {.start = start,
                        .sequence = s,
                        .key_head = i % shape.heads,
                        .qk = pairs,
                        .kk = pairs + n * shape.chunk,
                        .decay = pairs + 2 * n * shape.chunk};
        REAL_NAME(delta_arrays_init)(&head.arrays, &shape, n);
        gdn_load_keys(run, &shape, &head);
        flops += visits->keys(run, &shape, &head, data);
        for (int64_t v = 0; v < group; v++) {
            head.head = head.key_head * group + v;
            gdn_load_values(run, &shape, &head);
            flops += visits->values(run, &shape, &head, data);
        }
        flops += visits->finish != NULL ? visits->finish(run, &shape, &head, data) : 0;
        REAL_NAME(delta_arrays_clear)(&head.arrays);
    }
    return flops;
}

/* Where a head's pair products lie in the kept tensors. */
static int64_t gdn_pairs_at(const DeltaShape *shape, const GdnHead *head)
{
    return (head->start * shape->heads + head->key_head) * shape->chunk;
}

static double gdn_keys_forward(const OpRun *run, const DeltaShape *shape, GdnHead *head, void *data)
{
    (void)data;
    int64_t stride = shape->heads * shape->chunk, at = gdn_pairs_at(shape, head), n = head->arrays.rule.n;
    double flops = gdn_products(shape, head);
    REAL_NAME(delta_scatter)(head->qk, n, shape->chunk, real_data(run->aux[GDN_AUX_QK]) + at, stride);
    REAL_NAME(delta_scatter)(head->kk, n, shape->chunk, real_data(run->aux[GDN_AUX_KK]) + at, stride);
    return flops;
}

static double gdn_head_forward(const OpRun *run, const DeltaShape *shape, GdnHead *head, void *data)
{
    const OpRun *chain = data; /* keeps what framework operators do; or NULL */
    const GdnAttr *attr = run->view->op->attr;
    int64_t dv = shape->value_dim;
    real *o = real_data(run->out[GDN_O]) + (head->start * shape->value_heads + head->head) * dv;
    real *last_state = REAL_NAME(delta_state_of)(run->out[GDN_LAST_STATE], shape, head->sequence, head->head);
    double flops = 0;
    if (attr->recurrent) {
        REAL_NAME(delta_recurrent_forward)(&head->arrays.rule, head->arrays.o, last_state);
    } else {
        flops += gdn_decay_pairs(shape, head);
        flops += REAL_NAME(delta_chunk_forward)(&head->arrays.rule, head->arrays.o, last_state);
    }
    REAL_NAME(delta_scatter)(head->arrays.o, head->arrays.rule.n, dv, o, shape->value_heads * dv);
    if (chain != NULL && !attr->recurrent) {
        REAL_NAME(delta_eager_keep)(chain, shape, &head->arrays, head->start, head->head);
    }
    return flops;
}

/* FLOPs around the core: norms and scale per key head; gate 5, its exponential 1, write strength 1; exp(A_log). */
static double gdn_outer_forward_flops(const GdnAttr *attr, int64_t tokens)
{
    double norms = 2 * (3 * (double)attr->key_dim + 2) + (double)attr->key_dim;
    return (double)(tokens * attr->heads) * norms + 7 * (double)(tokens * attr->value_heads) +
           (double)attr->value_heads;
}

/* Normed q and k with their reciprocal norms. */
static void gdn_norms(const OpRun *run)
{
    const GdnAttr *attr = run->view->op->attr;
    int64_t n = op_rows(run->view, ROWS_TOKENS) * attr->heads;
    REAL_NAME(delta_norm_forward)
    (real_data_const(run->in[DELTA_IN_Q]), n, attr->key_dim, real_data(run->aux[GDN_AUX_Q]),
     real_data(run->aux[GDN_AUX_Q_NORM]));
    REAL_NAME(delta_norm_forward)
    (real_data_const(run->in[DELTA_IN_K]), n, attr->key_dim, real_data(run->aux[GDN_AUX_K]),
     real_data(run->aux[GDN_AUX_K_NORM]));
}

/* What the fused form keeps of an eager operator's run. */
static void gdn_enter(const OpRun *run, DeltaEager *ret_eager)
{
    const GdnAttr *attr = run->view->op->attr;
    DeltaOp op = {.shape = gdn_shape(attr), .pair_heads = attr->heads, .normed = TRUE};
    OpSaved fused;
    delta_fused_saved(run->view, &op, &fused);
    REAL_NAME(delta_eager_enter)(run, &op.shape, &fused, ret_eager);
}

/* chain: the eager operator's own run, or NULL. */
static void gdn_run_forward(const OpRun *run, const OpRun *chain)
{
    static const GdnVisits visits = {gdn_keys_forward, gdn_head_forward, NULL};
    const GdnAttr *attr = run->view->op->attr;
    int64_t tokens = op_rows(run->view, ROWS_TOKENS);
    gdn_norms(run);
    double flops = gdn_outer_forward_flops(attr, tokens) + gdn_each_head(run, &visits, (void *)(guintptr)chain);
    op_count(run, flops,
             REAL_NAME(delta_numel_const)(run->in, OP_INPUTS_MAX) +
                 REAL_NAME(delta_numel_const)(run->param, OP_PARAMS_MAX),
             REAL_NAME(delta_numel)(run->out, OP_OUTPUTS_MAX) + REAL_NAME(delta_numel)(run->aux, OP_AUX_MAX));
}

gboolean REAL_NAME(gdn_forward)(const OpRun *run, GError **error)
{
    (void)error;
    if (!run->view->op->eager) {
        gdn_run_forward(run, NULL);
        return TRUE;
    }
    DeltaEager eager;
    gdn_enter(run, &eager);
    gdn_run_forward(&eager.run, run);
    REAL_NAME(delta_eager_leave)(&eager);
    return TRUE;
}

/* Sums over heads: gradients of normed q and k [tokens, heads x dk], of the parameters, and of one key head's products.
 */
typedef struct GdnBackward {
    real *dq, *dk, *da_log, *ddt;
    real *dqk, *dkk; /* [n, chunk] of the key head at hand; owned */
    const OpRun *chain; /* an eager operator's own run, or NULL */
} GdnBackward;

static double gdn_keys_backward(const OpRun *run, const DeltaShape *shape, GdnHead *head, void *data)
{
    GdnBackward *sums = data;
    int64_t stride = shape->heads * shape->chunk, at = gdn_pairs_at(shape, head), n = head->arrays.rule.n;
    REAL_NAME(delta_gather)(real_data_const(run->aux[GDN_AUX_QK]) + at, stride, n, shape->chunk, head->qk);
    REAL_NAME(delta_gather)(real_data_const(run->aux[GDN_AUX_KK]) + at, stride, n, shape->chunk, head->kk);
    if (sums->chain != NULL) { /* value heads keep their own */
        gdn_products(shape, head);
    }
    sums->dqk = g_new0(real, (gsize)(n * shape->chunk + 1));
    sums->dkk = g_new0(real, (gsize)(n * shape->chunk + 1));
    return 0;
}

/* From the pair matrices to the shared products and to the decays. 9 operations per pair, 1 on the diagonal. */
static double gdn_pairs_backward(const DeltaShape *shape, const GdnHead *head, const DeltaArrays *grad,
                                 GdnBackward *sums)
{
    int64_t dk = shape->key_dim, ld = shape->chunk, n_pairs = 0, n = head->arrays.rule.n;
    for (int64_t t = 0; t < n; t++) {
        int64_t r = t % ld, first = t - r;
        for (int64_t i = 0; i < r; i++) {
            int64_t at = t * ld + i;
            real share = grad->a[at] * head->arrays.a[at] + grad->p[at] * head->arrays.p[at];
            sums->dkk[at] += grad->a[at] * head->decay[at];
            sums->dqk[at] += grad->p[at] * head->decay[at];
            grad->w[t * dk] += share; /* the gate's gradient is a sum over channels: any channel will do */
            grad->w[(first + i) * dk] -= share;
        }
        sums->dqk[t * ld + r] += grad->p[t * ld + r];
        n_pairs += r;
    }
    return 9.0 * (double)n_pairs + (double)n;
}

/* From g and beta to a, A_log, dt_bias and the logits. */
static void gdn_gates_backward(const OpRun *run, const DeltaShape *shape, const GdnHead *head, const DeltaArrays *grad,
                               GdnBackward *sums)
{
    int64_t dk = shape->key_dim, heads = shape->value_heads, h = head->head;
    const real *a = real_data_const(run->in[DELTA_IN_GATE]), *logit = real_data_const(run->in[DELTA_IN_BETA]);
    real exp_a = real_exp(real_data_const(run->param[GDN_A_LOG])[h]), dt = real_data_const(run->param[GDN_DT_BIAS])[h];
    real *da = real_data(run->din[DELTA_IN_GATE]), *dlogit = real_data(run->din[DELTA_IN_BETA]);
    for (int64_t t = 0; t < head->arrays.rule.n; t++) {
        int64_t row = (head->start + t) * heads + h;
        real dg = 0, x = a[row] + dt, s = real_sigmoid(logit[row]);
        for (int64_t d = 0; d < dk; d++) {
            dg += grad->w[t * dk + d];
        }
        real dx = dg * (-exp_a * real_sigmoid(x));
        sums->da_log[h] += dg * (-exp_a * real_softplus(x));
        sums->ddt[h] += dx;
        if (da != NULL) {
            da[row] = dx;
        }
        if (dlogit != NULL) {
            dlogit[row] = grad->beta[t] * s * (1 - s);
        }
    }
}

/* Adds a value head's gradients of q (scaled) and k to those of its key head. */
static void gdn_add_keys(const DeltaShape *shape, const GdnHead *head, const real *dq, const real *dkey,
                         GdnBackward *sums)
{
    int64_t dk = shape->key_dim;
    real scale = 1 / real_sqrt((real)dk);
    for (int64_t t = 0; t < head->arrays.rule.n; t++) {
        int64_t at = ((head->start + t) * shape->heads + head->key_head) * dk;
        for (int64_t d = 0; d < dk; d++) {
            sums->dq[at + d] += scale * dq[t * dk + d];
            sums->dk[at + d] += dkey[t * dk + d];
        }
    }
}

static double gdn_rule_backward(const OpRun *run, const DeltaShape *shape, GdnHead *head, const DeltaUpstream *up,
                                DeltaArrays *grad, GdnBackward *sums)
{
    const GdnAttr *attr = run->view->op->attr;
    DeltaGradients grads = {.q = grad->q,
                            .k = grad->k,
                            .g = grad->w,
                            .v = grad->v,
                            .beta = grad->beta,
                            .a = grad->a,
                            .p = grad->p,
                            .state = REAL_NAME(delta_state_of)(run->din[DELTA_IN_STATE], shape, head->sequence, head->head)};
    if (attr->recurrent) {
        REAL_NAME(delta_recurrent_backward)(&head->arrays.rule, up, &grads);
        return 0;
    }
    double flops = gdn_decay_pairs(shape, head);
    if (sums->chain != NULL) {
        REAL_NAME(delta_eager_pairs)(sums->chain, shape, head->start, head->head, &head->arrays);
    }
    flops += REAL_NAME(delta_chunk_backward)(&head->arrays.rule, up, &grads);
    flops += gdn_pairs_backward(shape, head, grad, sums);
    return flops + REAL_NAME(delta_decay_finish)(&head->arrays.rule, grad->w);
}

static double gdn_head_backward(const OpRun *run, const DeltaShape *shape, GdnHead *head, void *data)
{
    GdnBackward *sums = data;
    int64_t n = head->arrays.rule.n, dv = shape->value_dim, stride = shape->value_heads * dv;
    int64_t at = head->start * stride + head->head * dv, state_at = head->sequence * shape->value_heads + head->head;
    const real *d_o = real_data_const(run->dout[GDN_O]), *dlast = real_data_const(run->dout[GDN_LAST_STATE]);
    DeltaArrays grad;
    REAL_NAME(delta_arrays_init)(&grad, shape, n);
    if (d_o != NULL) {
        REAL_NAME(delta_gather)(d_o + at, stride, n, dv, grad.o);
    }
    DeltaUpstream up = {d_o != NULL ? grad.o : NULL, dlast != NULL ? dlast + state_at * shape->key_dim * dv : NULL};
    double flops = gdn_rule_backward(run, shape, head, &up, &grad, sums);
    if (run->din[DELTA_IN_V] != NULL) {
        REAL_NAME(delta_scatter)(grad.v, n, dv, real_data(run->din[DELTA_IN_V]) + at, stride);
    }
    gdn_add_keys(shape, head, grad.q, grad.k, sums);
    gdn_gates_backward(run, shape, head, &grad, sums);
    REAL_NAME(delta_arrays_clear)(&grad);
    return flops;
}

/* From the shared products to q and k: dq = dqk K, dk = dqk^T Q + (dkk + dkk^T) K. Causal pairs count. */
static double gdn_keys_finish(const OpRun *run, const DeltaShape *shape, GdnHead *head, void *data)
{
    (void)run;
    GdnBackward *sums = data;
    int64_t dk = shape->key_dim, ld = shape->chunk, n = head->arrays.rule.n;
    g_autofree real *dq = g_new(real, (gsize)(n * dk + 1)), *dkey = g_new(real, (gsize)(n * dk + 1));
    double flops = 0;
    for (int64_t start = 0; start < n; start += ld) {
        int64_t c = MIN(ld, n - start);
        Matmul rows = {.m = c, .n = dk, .k = c, .lda = ld, .ldb = dk, .ldc = dk, .alpha = 1};
        Matmul columns = {
            .m = c, .n = dk, .k = c, .trans_a = TRUE, .lda = ld, .ldb = dk, .ldc = dk, .alpha = 1, .beta = 1};
        const real *q = head->arrays.q + start * dk, *k = head->arrays.k + start * dk;
        const real *dqk = sums->dqk + start * ld, *dkk = sums->dkk + start * ld;
        REAL_NAME(matmul)(&rows, dqk, k, dq + start * dk);
        REAL_NAME(matmul)(&rows, dkk, k, dkey + start * dk);
        REAL_NAME(matmul)(&columns, dkk, k, dkey + start * dk);
        REAL_NAME(matmul)(&columns, dqk, q, dkey + start * dk);
        flops += 2.0 * (double)(c * (c + 1) * dk) + 2.0 * (double)(c * (c - 1) * dk);
    }
    gdn_add_keys(shape, head, dq, dkey, sums);
    g_clear_pointer(&sums->dqk, g_free);
    g_clear_pointer(&sums->dkk, g_free);
    return flops;
}

/*
 * FLOPs around the core: scale and norms per key head; per value head 3 per channel to add dq and dk (key heads:
 * again), the sum over channels of dg, and gates: 6 for the decay again, 6 of the slopes, 4 of the write strength.
 */
static double gdn_outer_backward_flops(const GdnAttr *attr, int64_t tokens)
{
    double dk = (double)attr->key_dim;
    return (double)(tokens * attr->heads) * (dk + 10 * dk + 3 * dk) +
           (double)(tokens * attr->value_heads) * (4 * dk + 16) + (double)attr->value_heads;
}

static void gdn_run_backward(const OpRun *run, const OpRun *chain)
{
    static const GdnVisits visits = {gdn_keys_backward, gdn_head_backward, gdn_keys_finish};
    const GdnAttr *attr = run->view->op->attr;
    int64_t tokens = op_rows(run->view, ROWS_TOKENS), n_vectors = tokens * attr->heads, n = n_vectors * attr->key_dim;
    g_autofree real *dq = g_new0(real, (gsize)(n + 1)), *dk = g_new0(real, (gsize)(n + 1));
    g_autofree real *da_log = g_new0(real, (gsize)attr->value_heads), *ddt = g_new0(real, (gsize)attr->value_heads);
    GdnBackward sums = {.dq = dq, .dk = dk, .da_log = da_log, .ddt = ddt, .chain = chain};
    double flops = gdn_outer_backward_flops(attr, tokens) + gdn_each_head(run, &visits, &sums);
    REAL_NAME(delta_norm_backward)
    (real_data_const(run->aux[GDN_AUX_Q]), real_data_const(run->aux[GDN_AUX_Q_NORM]), n_vectors, attr->key_dim, dq);
    REAL_NAME(delta_norm_backward)
    (real_data_const(run->aux[GDN_AUX_K]), real_data_const(run->aux[GDN_AUX_K_NORM]), n_vectors, attr->key_dim, dk);
    Tensor *const to[] = {run->din[DELTA_IN_Q], run->din[DELTA_IN_K], run->dparam[GDN_A_LOG], run->dparam[GDN_DT_BIAS]};
    const real *const from[] = {dq, dk, da_log, ddt};
    for (guint i = 0; i < G_N_ELEMENTS(to); i++) {
        if (to[i] != NULL) {
            memcpy(to[i]->data, from[i], (size_t)tensor_numel(to[i]) * sizeof(real));
        }
    }
    int64_t read =
        REAL_NAME(delta_numel_const)(run->in, OP_INPUTS_MAX) + REAL_NAME(delta_numel_const)(run->param, OP_PARAMS_MAX);
    read += REAL_NAME(delta_numel_const)(run->dout, OP_OUTPUTS_MAX) + REAL_NAME(delta_numel)(run->aux, OP_AUX_MAX);
    op_count(run, flops, read,
             REAL_NAME(delta_numel)(run->din, OP_INPUTS_MAX) + REAL_NAME(delta_numel)(run->dparam, OP_PARAMS_MAX));
}

gboolean REAL_NAME(gdn_backward)(const OpRun *run, GError **error)
{
    (void)error;
    if (!run->view->op->eager) {
        gdn_run_backward(run, NULL);
        return TRUE;
    }
    DeltaEager eager;
    gdn_enter(run, &eager);
    gdn_norms(&eager.run);
    gdn_run_backward(&eager.run, run);
    REAL_NAME(delta_eager_leave)(&eager);
    return TRUE;
}

#if REAL_HAS_CLASS
int gdn_add(Graph *graph, const char *prefix, const int qkvab[5], const GdnAttr *attr)
{
    DeltaShape shape = gdn_shape(attr);
    return delta_op_add(graph, OP_gdn, prefix, qkvab, &shape, attr->value_heads, attr,
                        sizeof *attr);
}

static DeltaOp gdn_describe(const OpView *view)
{
    const GdnAttr *attr = view->op->attr;
    int64_t tokens = op_rows(view, ROWS_TOKENS);
    return (DeltaOp){.shape = gdn_shape(attr),
                     .pair_heads = attr->heads,
                     .normed = TRUE,
                     .forward_flops = gdn_outer_forward_flops(attr, tokens),
                     .backward_flops = gdn_outer_backward_flops(attr, tokens)};
}

static void gdn_saved(const OpView *view, OpSaved *ret_saved)
{
    DeltaOp op = gdn_describe(view);
    delta_op_saved(view, &op, ret_saved);
}

static void gdn_forward_cost(const OpView *view, OpCost *ret_cost)
{
    DeltaOp op = gdn_describe(view);
    delta_op_forward_cost(view, &op, ret_cost);
}

static void gdn_backward_cost(const OpView *view, OpCost *ret_cost)
{
    DeltaOp op = gdn_describe(view);
    delta_op_backward_cost(view, &op, ret_cost);
}

static gboolean gdn_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        GdnAttr attr;
        DeltaSample sample;
    } samples[] = {
        {{2, 2, 4, 3, 8, FALSE}, {1, 11, TRUE}},
        {{1, 2, 3, 4, 16, FALSE}, {2, 37, FALSE}},
        {{1, 2, 4, 4, 0, FALSE}, {1, 65, TRUE}},
        {{1, 1, 1, 1, 0, FALSE}, {1, 1, FALSE}},
    };
    int inputs[DELTA_N_IN];
    if (idx < 0 || idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    const GdnAttr *attr = &samples[idx].attr;
    DeltaShape shape = gdn_shape(attr);
    delta_op_sample_inputs(graph, &shape, "a", attr->value_heads, inputs);
    delta_op_sample_finish(graph, &shape, &samples[idx].sample, gdn_add(graph, "attn", inputs, attr), rows);
    return TRUE;
}

extern const OpClass op_gdn;
const OpClass op_gdn = {
    .id = "gdn",
    .title = "gated delta net",
    .saved = gdn_saved,
    .forward_cost = gdn_forward_cost,
    .backward_cost = gdn_backward_cost,
    .forward = REAL_KERNELS(gdn_forward),
    .backward = REAL_KERNELS(gdn_backward),
    .sample = gdn_sample,
};
#endif
