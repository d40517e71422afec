#include "models/ops/gdn.h"

#include <string.h>

#include "models/delta-cost.h"
#include "models/delta-heads.h"
#include "models/delta-rule.h"
#include "models/matmul.h"
#include "models/op-name.h"
#include "models/op.h"
#include "models/real-math.h"
#include "models/real.h"
#include "models/sequences.h"

REAL_DECLARE(gdn_forward);
REAL_DECLARE(gdn_backward);

enum { GDN_Q, GDN_K, GDN_V, GDN_A, GDN_BETA, GDN_STATE, GDN_O = 0, GDN_LAST_STATE, GDN_A_LOG = 0, GDN_DT_BIAS };
enum { GDN_AUX_QK, GDN_AUX_KK, GDN_AUX_Q, GDN_AUX_K, GDN_AUX_Q_NORM, GDN_AUX_K_NORM };

static DeltaShape gdn_shape(const OpView *view)
{
    const GdnAttr *attr = view->op->attr;
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
    const real *a = real_data_const(run->in[GDN_A]), *logit = real_data_const(run->in[GDN_BETA]);
    const real *v = real_data_const(run->in[GDN_V]), *state = real_data_const(run->in[GDN_STATE]);
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
    DeltaShape shape = gdn_shape(run->view);
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
    (void)data;
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
    return flops;
}

/* FLOPs around the core: norms and scale per key head; gate 5, its exponential 1, write strength 1; exp(A_log). */
static double gdn_outer_forward_flops(const GdnAttr *attr, int64_t tokens)
{
    double norms = 2 * (3 * (double)attr->key_dim + 2) + (double)attr->key_dim;
    return (double)(tokens * attr->heads) * norms + 7 * (double)(tokens * attr->value_heads) +
           (double)attr->value_heads;
}

gboolean REAL_NAME(gdn_forward)(const OpRun *run, GError **error)
{
    (void)error;
    static const GdnVisits visits = {gdn_keys_forward, gdn_head_forward, NULL};
    const GdnAttr *attr = run->view->op->attr;
    int64_t tokens = op_rows(run->view, ROWS_TOKENS), n_vectors = tokens * attr->heads;
    REAL_NAME(delta_norm_forward)
    (real_data_const(run->in[GDN_Q]), n_vectors, attr->key_dim, real_data(run->aux[GDN_AUX_Q]),
     real_data(run->aux[GDN_AUX_Q_NORM]));
    REAL_NAME(delta_norm_forward)
    (real_data_const(run->in[GDN_K]), n_vectors, attr->key_dim, real_data(run->aux[GDN_AUX_K]),
     real_data(run->aux[GDN_AUX_K_NORM]));
    double flops = gdn_outer_forward_flops(attr, tokens) + gdn_each_head(run, &visits, NULL);
    op_count(run, flops,
             REAL_NAME(delta_numel_const)(run->in, OP_INPUTS_MAX) +
                 REAL_NAME(delta_numel_const)(run->param, OP_PARAMS_MAX),
             REAL_NAME(delta_numel)(run->out, OP_OUTPUTS_MAX) + REAL_NAME(delta_numel)(run->aux, OP_AUX_MAX));
    return TRUE;
}

/* Sums over heads: gradients of normed q and k [tokens, heads x dk], of the parameters, and of one key head's products.
 */
typedef struct GdnBackward {
    real *dq, *dk, *da_log, *ddt;
    real *dqk, *dkk; /* [n, chunk] of the key head at hand; owned */
} GdnBackward;

static double gdn_keys_backward(const OpRun *run, const DeltaShape *shape, GdnHead *head, void *data)
{
    GdnBackward *sums = data;
    int64_t stride = shape->heads * shape->chunk, at = gdn_pairs_at(shape, head), n = head->arrays.rule.n;
    REAL_NAME(delta_gather)(real_data_const(run->aux[GDN_AUX_QK]) + at, stride, n, shape->chunk, head->qk);
    REAL_NAME(delta_gather)(real_data_const(run->aux[GDN_AUX_KK]) + at, stride, n, shape->chunk, head->kk);
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
    const real *a = real_data_const(run->in[GDN_A]), *logit = real_data_const(run->in[GDN_BETA]);
    real exp_a = real_exp(real_data_const(run->param[GDN_A_LOG])[h]), dt = real_data_const(run->param[GDN_DT_BIAS])[h];
    real *da = real_data(run->din[GDN_A]), *dlogit = real_data(run->din[GDN_BETA]);
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
                            .state = REAL_NAME(delta_state_of)(run->din[GDN_STATE], shape, head->sequence, head->head)};
    if (attr->recurrent) {
        REAL_NAME(delta_recurrent_backward)(&head->arrays.rule, up, &grads);
        return 0;
    }
    double flops = gdn_decay_pairs(shape, head);
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
    if (run->din[GDN_V] != NULL) {
        REAL_NAME(delta_scatter)(grad.v, n, dv, real_data(run->din[GDN_V]) + at, stride);
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

gboolean REAL_NAME(gdn_backward)(const OpRun *run, GError **error)
{
    (void)error;
    static const GdnVisits visits = {gdn_keys_backward, gdn_head_backward, gdn_keys_finish};
    const GdnAttr *attr = run->view->op->attr;
    int64_t tokens = op_rows(run->view, ROWS_TOKENS), n_vectors = tokens * attr->heads, n = n_vectors * attr->key_dim;
    g_autofree real *dq = g_new0(real, (gsize)(n + 1)), *dk = g_new0(real, (gsize)(n + 1));
    g_autofree real *da_log = g_new0(real, (gsize)attr->value_heads), *ddt = g_new0(real, (gsize)attr->value_heads);
    GdnBackward sums = {.dq = dq, .dk = dk, .da_log = da_log, .ddt = ddt};
    double flops = gdn_outer_backward_flops(attr, tokens) + gdn_each_head(run, &visits, &sums);
    REAL_NAME(delta_norm_backward)
    (real_data_const(run->aux[GDN_AUX_Q]), real_data_const(run->aux[GDN_AUX_Q_NORM]), n_vectors, attr->key_dim, dq);
    REAL_NAME(delta_norm_backward)
    (real_data_const(run->aux[GDN_AUX_K]), real_data_const(run->aux[GDN_AUX_K_NORM]), n_vectors, attr->key_dim, dk);
    Tensor *const to[] = {run->din[GDN_Q], run->din[GDN_K], run->dparam[GDN_A_LOG], run->dparam[GDN_DT_BIAS]};
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
    return TRUE;
}

#if REAL_HAS_CLASS
/* Adds a parameter PREFIX.part of n values that stays fp32. */
static int gdn_add_param(Graph *graph, const char *prefix, const char *part, int64_t n)
{
    int param = graph_add_param(graph, op_name(prefix, part).text, PARAM_VECTOR, n, 0, 0);
    graph_param(graph, param)->always_fp32 = TRUE;
    return param;
}

int gdn_add(Graph *graph, const char *prefix, const int qkvab[5], const GdnAttr *attr)
{
    OpName name = op_name(prefix, "gdn");
    int a_log = gdn_add_param(graph, prefix, "A_log", attr->value_heads);
    int dt_bias = gdn_add_param(graph, prefix, "dt_bias", attr->value_heads);
    int o = graph_add_tensor(graph, name.text, ROWS_TOKENS, attr->value_heads * attr->value_dim, graph->compute);
    Op *op = op_add(graph, OP_gdn, name.text, attr, sizeof *attr);
    for (int i = 0; i < 5; i++) {
        op_input(op, qkvab[i]);
    }
    op_param(graph, op, a_log);
    op_param(graph, op, dt_bias);
    op_output(graph, op, o);
    return o;
}

void gdn_add_states(Graph *graph, Op *op, int before, int after)
{
    if (before >= 0) {
        op_input(op, before);
    }
    op_output(graph, op, after);
}

/*
 * Normed q and k with their reciprocal norms; the products of q and k and of k with itself inside chunks, which the
 * value heads of a group share before their decays; v, a and beta by reference.
 */
static void gdn_saved(const OpView *view, OpSaved *ret_saved)
{
    DeltaShape shape = gdn_shape(view);
    Dtype dtype = op_in(view, GDN_Q)->dtype, wide = op_wide_dtype(view->graph);
    gboolean has_state = view->op->n_inputs > GDN_STATE;
    if (view->op->eager) {
        *ret_saved = (OpSaved){.inputs = 1u << GDN_Q | 1u << GDN_K | 1u << GDN_A | 1u << GDN_BETA};
        delta_eager_saved(&shape, ret_saved);
        return;
    }
    *ret_saved = (OpSaved){.inputs = 1u << GDN_V | 1u << GDN_A | 1u << GDN_BETA | (has_state ? 1u << GDN_STATE : 0)};
    op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads * shape.chunk, dtype);
    op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads * shape.chunk, dtype);
    op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads * shape.key_dim, dtype);
    op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads * shape.key_dim, dtype);
    op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads, wide);
    op_saved_aux(ret_saved, ROWS_TOKENS, shape.heads, wide);
}

static int64_t gdn_saved_bytes(const OpView *view)
{
    OpSaved saved;
    int64_t bytes = 0;
    gdn_saved(view, &saved);
    for (int i = 0; i < saved.n_aux; i++) {
        bytes += op_aux_bytes(&saved.aux[i], view->rows);
    }
    return bytes;
}

/* Both parameters, or those of them that train. */
static int64_t gdn_param_bytes(const OpView *view, gboolean trained_only)
{
    int64_t n = 0;
    for (int i = 0; i < view->op->n_params; i++) {
        n += trained_only && !op_trains_param(view, i) ? 0 : graph_param_numel(op_weight(view, i));
    }
    return dtype_bytes(op_wide_dtype(view->graph), n);
}

static void gdn_work(const OpView *view, OpCost *cost, const DeltaSums *sums, const Work *amounts)
{
    DeltaShape shape = gdn_shape(view);
    Work *work = op_cost_stream(cost, amounts->law, amounts->flops, amounts->read_bytes, amounts->write_bytes);
    work->m = sums->n_tokens;
    work->n = shape.value_heads;
    work->k = shape.key_dim;
    work->n_groups = sums->n_sequences;
}

static void gdn_forward_cost(const OpView *view, OpCost *ret_cost)
{
    DeltaShape shape = gdn_shape(view);
    DeltaSums sums = delta_sums(view->rows, shape.chunk);
    Work work = {
        .law = WORK_KDA_FORWARD, .read_bytes = gdn_param_bytes(view, FALSE), .write_bytes = gdn_saved_bytes(view)};
    *ret_cost = (OpCost){0};
    if (view->op->eager) {
        delta_eager_forward(&shape, &sums, ret_cost);
        return;
    }
    for (int i = 0; i < view->op->n_inputs; i++) {
        work.read_bytes += op_in_bytes(view, i);
    }
    for (int i = 0; i < view->op->n_outputs; i++) {
        work.write_bytes += op_out_bytes(view, i);
    }
    work.flops = delta_forward_flops(&shape, &sums) + gdn_outer_forward_flops(view->op->attr, sums.n_tokens);
    gdn_work(view, ret_cost, &sums, &work);
    ret_cost->workspace_bytes = delta_forward_workspace(&shape, &sums);
    ret_cost->n_host_ops = DELTA_HOST_FORWARD;
}

/* One fused pass that makes every gradient at once, needed or not: they share nearly all of the work. */
static void gdn_backward_cost(const OpView *view, OpCost *ret_cost)
{
    DeltaShape shape = gdn_shape(view);
    DeltaSums sums = delta_sums(view->rows, shape.chunk);
    OpSaved saved;
    *ret_cost = (OpCost){0};
    if (!op_has_backward(view)) {
        return;
    }
    if (view->op->eager) {
        delta_eager_backward(&shape, &sums, ret_cost);
        return;
    }
    gdn_saved(view, &saved);
    Work work = {.law = WORK_KDA_BACKWARD};
    work.read_bytes = gdn_saved_bytes(view) + gdn_param_bytes(view, FALSE);
    work.write_bytes = gdn_param_bytes(view, TRUE);
    for (int i = 0; i < view->op->n_inputs; i++) {
        work.read_bytes += saved.inputs >> i & 1u ? op_in_bytes(view, i) : 0;
        work.write_bytes += op_needs_input_grad(view, i) ? op_in_bytes(view, i) : 0;
    }
    for (int i = 0; i < view->op->n_outputs; i++) {
        work.read_bytes += op_out_bytes(view, i);
    }
    work.flops = delta_backward_flops(&shape, &sums) + gdn_outer_backward_flops(view->op->attr, sums.n_tokens);
    gdn_work(view, ret_cost, &sums, &work);
    ret_cost->workspace_bytes = delta_backward_workspace(&shape, &sums);
    ret_cost->n_host_ops = DELTA_HOST_BACKWARD;
}

static gboolean gdn_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        GdnAttr attr;
        int64_t n_sequences, seq_len;
        gboolean states;
    } samples[] = {
        {{2, 2, 4, 3, 8, FALSE}, 1, 11, TRUE},
        {{1, 2, 3, 4, 16, FALSE}, 2, 37, FALSE},
        {{1, 2, 4, 4, 0, FALSE}, 1, 65, TRUE},
        {{1, 1, 1, 1, 0, FALSE}, 1, 1, FALSE},
    };
    static const char *const names[] = {"q", "k", "v", "a", "beta"};
    if (idx < 0 || idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    const GdnAttr *attr = &samples[idx].attr;
    const int64_t widths[] = {attr->heads * attr->key_dim, attr->heads * attr->key_dim,
                              attr->value_heads * attr->value_dim, attr->value_heads, attr->value_heads};
    int inputs[5];
    for (int i = 0; i < 5; i++) {
        inputs[i] = graph_add_input(graph, names[i], ROWS_TOKENS, widths[i], graph->compute, TRUE);
    }
    graph_add_output(graph, gdn_add(graph, "attn", inputs, attr));
    if (samples[idx].states) {
        int64_t width = attr->value_heads * attr->key_dim * attr->value_dim;
        int before = graph_add_input(graph, "state", ROWS_SEQUENCES, width, graph->compute, TRUE);
        int after = graph_add_tensor(graph, "last_state", ROWS_SEQUENCES, width, graph->compute);
        gdn_add_states(graph, graph_op(graph, 0), before, after);
        graph_add_output(graph, after);
    }
    rows->rows[ROWS_TOKENS] = samples[idx].n_sequences * samples[idx].seq_len;
    rows->rows[ROWS_SEQUENCES] = samples[idx].n_sequences;
    rows->seq_len = samples[idx].seq_len;
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
