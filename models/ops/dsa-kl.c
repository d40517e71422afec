#include "models/ops/dsa-kl.h"

#include <math.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/ops/dsa-scores.h"
#include "models/real-math.h"
#include "models/real.h"
#include "models/sequences.h"
#include "models/values.h"
#include "sim/base/error.h"

REAL_DECLARE(dsa_kl_forward);
REAL_DECLARE(dsa_kl_backward);

enum { IN_Q_INDEX, IN_K_INDEX, IN_W, IN_SEL, IN_Q, IN_K, IN_K_TAIL, IN_LSE };

enum { AUX_LSE, AUX_SUM };

/* Operations of a pair. Target: per head the dot product, scale, minus, exp, sum. Score: as in dsa-indexer.c. */
static double pair_flops(const DsaKlAttr *attr)
{
    double score = (double)attr->index.heads * (2 * (double)attr->index.dim + (attr->index.no_relu ? 2 : 3));
    return (double)attr->heads * (2 * (double)attr->head_dim + 4) + score;
}

/* One token's keys with their scores and targets; scratch that is used again for every token. */
typedef struct KlRow {
    int64_t t, n;
    int64_t *keys;
    real *scores, *targets;   /* [n] */
    real *dots;               /* [n, index heads] */
    real *weights, *dweights; /* [index heads] */
} KlRow;

static void kl_row_init(KlRow *row, const OpRun *run)
{
    const DsaKlAttr *attr = run->view->op->attr;
    gsize n = (gsize)sequences_longest(run->view->rows, ROWS_TOKENS) + 1;
    *row = (KlRow){.keys = g_new(int64_t, n), .scores = g_new(real, n), .targets = g_new(real, n)};
    row->dots = g_new(real, n * (gsize)attr->index.heads);
    row->weights = g_new(real, (gsize)attr->index.heads);
    row->dweights = g_new(real, (gsize)attr->index.heads);
}

static void kl_row_clear(KlRow *row)
{
    g_free(row->keys);
    g_free(row->scores);
    g_free(row->targets);
    g_free(row->dots);
    g_free(row->weights);
    g_free(row->dweights);
}

/* The keys of token t of the sequence that begins at start: those selected, or all that came before. */
static gboolean kl_row_keys(KlRow *row, const OpRun *run, int64_t t, int64_t start, GError **error)
{
    row->t = t;
    row->n = 0;
    if (run->in[IN_SEL] == NULL) {
        for (int64_t s = start; s <= t; s++) {
            row->keys[row->n++] = s;
        }
        return TRUE;
    }
    int64_t top_k = op_in(run->view, IN_SEL)->width;
    const int64_t *sel = values_ids(run, IN_SEL) + t * top_k;
    for (int64_t i = 0; i < top_k && sel[i] >= 0; i++) {
        if (sel[i] < start || sel[i] > t || row->n > t - start) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                        "%s: token %" G_GINT64_FORMAT " selects key %" G_GINT64_FORMAT
                        ", which is not before it in its sequence, or one twice",
                        run->view->op->name, t, sel[i]);
            return FALSE;
        }
        row->keys[row->n++] = sel[i];
    }
    return TRUE;
}

/* Probability that head h gives to key s, from the attention's own q, k and log-sum-exp. */
static real target_of(const OpRun *run, int64_t t, int64_t h, int64_t s)
{
    const DsaKlAttr *attr = run->view->op->attr;
    int64_t main_dim = attr->head_dim - attr->tail_dim;
    const real *q = values_in(run, IN_Q) + (t * attr->heads + h) * attr->head_dim;
    const real *k = values_in(run, IN_K) + (s * attr->kv_heads + h / (attr->heads / attr->kv_heads)) * main_dim;
    real sum = 0;
    for (int64_t d = 0; d < main_dim; d++) {
        sum += q[d] * k[d];
    }
    for (int64_t d = 0; d < attr->tail_dim; d++) {
        sum += q[main_dim + d] * values_in(run, IN_K_TAIL)[s * attr->tail_dim + d];
    }
    return real_exp(sum * (real)attr->scale - values_in(run, IN_LSE)[t * attr->heads + h]);
}

/* Scores, and targets before they are normalised. */
static void kl_row_compute(KlRow *row, const OpRun *run)
{
    const DsaKlAttr *attr = run->view->op->attr;
    const real *q = values_in(run, IN_Q_INDEX) + row->t * attr->index.heads * attr->index.dim;
    index_weights(&attr->index, values_in(run, IN_W) + row->t * attr->index.heads, row->weights);
    for (int64_t i = 0; i < row->n; i++) {
        real *dots = row->dots + i * attr->index.heads;
        index_dots(&attr->index, q, values_in(run, IN_K_INDEX) + row->keys[i] * attr->index.dim, dots);
        row->scores[i] = index_score(&attr->index, dots, row->weights);
        row->targets[i] = 0;
        for (int64_t h = 0; h < attr->heads; h++) {
            row->targets[i] += target_of(run, row->t, h, row->keys[i]);
        }
        op_count_bytes(run, pair_flops(attr), 0, 0);
    }
    op_count_bytes(run, (double)attr->index.heads, 0, 0);
}

/* Bytes that either pass reads: whole tensors, or in the sparse stage the keys of every token. */
static void count_reads(const OpRun *run, int64_t n_pairs)
{
    const int keys[] = {IN_K_INDEX, IN_K, IN_K_TAIL};
    const int others[] = {IN_Q_INDEX, IN_W, IN_SEL, IN_Q, IN_LSE};
    for (size_t i = 0; i < G_N_ELEMENTS(keys); i++) {
        if (run->in[keys[i]] != NULL) {
            int64_t one = op_in_elem_bytes(run->view, keys[i]) * op_in(run->view, keys[i])->width;
            op_count_bytes(run, 0, run->in[IN_SEL] != NULL ? n_pairs * one : op_in_bytes(run->view, keys[i]), 0);
        }
    }
    for (size_t i = 0; i < G_N_ELEMENTS(others); i++) {
        op_count_bytes(run, 0, run->in[others[i]] != NULL ? op_in_bytes(run->view, others[i]) : 0, 0);
    }
}

/* KL divergence of one token; writes what backward needs of it. */
static real row_loss(const OpRun *run, const KlRow *row)
{
    real max = row->n > 0 ? row->scores[0] : 0;
    real sum = 0;
    real mass = 0;
    real loss = 0;
    for (int64_t i = 0; i < row->n; i++) {
        max = MAX(max, row->scores[i]);
        mass += row->targets[i];
    }
    for (int64_t i = 0; i < row->n; i++) {
        sum += real_exp(row->scores[i] - max);
    }
    real lse = max + real_log(sum);
    for (int64_t i = 0; i < row->n; i++) {
        real p = mass > 0 ? row->targets[i] / mass : 0;
        loss += p * (real_log(MAX(p, (real)1e-10)) - (row->scores[i] - lse));
    }
    if (run->aux[AUX_LSE] != NULL) {
        values_aux(run, AUX_LSE)[row->t] = lse;
        values_aux(run, AUX_SUM)[row->t] = mass;
        op_count_bytes(run, 0, 0, 8);
    }
    op_count_bytes(run, 12 * (double)row->n + 3, 0, 0);
    return loss;
}

gboolean REAL_NAME(dsa_kl_forward)(const OpRun *run, GError **error)
{
    const DsaKlAttr *attr = run->view->op->attr;
    const RowCounts *rows = run->view->rows;
    int64_t n_pairs = 0;
    gboolean ok = TRUE;
    real total = 0;
    KlRow row;
    kl_row_init(&row, run);
    for (int64_t q = 0; ok && q < sequences_count(rows, ROWS_TOKENS); q++) {
        int64_t start = sequences_start(rows, ROWS_TOKENS, q);
        for (int64_t t = start; ok && t < sequences_start(rows, ROWS_TOKENS, q + 1); t++) {
            ok = kl_row_keys(&row, run, t, start, error);
            if (ok) {
                kl_row_compute(&row, run);
                total += row_loss(run, &row);
                n_pairs += row.n;
            }
        }
    }
    kl_row_clear(&row);
    count_reads(run, n_pairs);
    op_count_bytes(run, 2, 0, op_out_bytes(run->view, 0));
    real *loss = run->out[0]->data;
    loss[0] = (real)attr->coeff / (real)MAX(rows->rows[ROWS_TOKENS], 1) * total;
    return ok;
}

/* dI = factor (softmax(I) - p), and from it the gradients of q, k and w. */
static void row_gradients(const OpRun *run, const KlRow *row, real factor)
{
    const DsaKlAttr *attr = run->view->op->attr;
    int64_t q_at = row->t * attr->index.heads * attr->index.dim;
    real lse = values_aux(run, AUX_LSE)[row->t];
    real mass = values_aux(run, AUX_SUM)[row->t];
    values_zero(row->dweights, attr->index.heads);
    for (int64_t i = 0; i < row->n; i++) {
        int64_t k_at = row->keys[i] * attr->index.dim;
        real p = mass > 0 ? row->targets[i] / mass : 0;
        real dscore = factor * (real_exp(row->scores[i] - lse) - p);
        IndexGradient to = {values_din(run, IN_Q_INDEX) + q_at, values_din(run, IN_K_INDEX) + k_at, row->dweights};
        index_score_gradient(&attr->index, values_in(run, IN_Q_INDEX) + q_at, values_in(run, IN_K_INDEX) + k_at,
                             row->dots + i * attr->index.heads, row->weights, dscore, to);
        op_count_bytes(run, 5 + (double)attr->index.heads * (4 * (double)attr->index.dim + 3), 0, 0);
    }
    index_weights(&attr->index, row->dweights, values_din(run, IN_W) + row->t * attr->index.heads);
    op_count_bytes(run, (double)attr->index.heads, 8, 0);
}

/* Every gradient is made or none: the indexer trains as a whole. */
gboolean REAL_NAME(dsa_kl_backward)(const OpRun *run, GError **error)
{
    const DsaKlAttr *attr = run->view->op->attr;
    const RowCounts *rows = run->view->rows;
    int64_t n_pairs = 0;
    gboolean ok = TRUE;
    values_zero_gradients(run);
    if (run->dout[0] == NULL || run->din[IN_Q_INDEX] == NULL || run->din[IN_K_INDEX] == NULL ||
        run->din[IN_W] == NULL) {
        return TRUE;
    }
    real factor = values_dout(run, 0)[0] * (real)attr->coeff / (real)MAX(rows->rows[ROWS_TOKENS], 1);
    KlRow row;
    kl_row_init(&row, run);
    for (int64_t q = 0; ok && q < sequences_count(rows, ROWS_TOKENS); q++) {
        int64_t start = sequences_start(rows, ROWS_TOKENS, q);
        for (int64_t t = start; ok && t < sequences_start(rows, ROWS_TOKENS, q + 1); t++) {
            ok = kl_row_keys(&row, run, t, start, error);
            if (ok) {
                kl_row_compute(&row, run);
                row_gradients(run, &row, factor);
                n_pairs += row.n;
            }
        }
    }
    kl_row_clear(&row);
    count_reads(run, n_pairs);
    int64_t dk = op_in_bytes(run->view, IN_K_INDEX);
    int64_t fp32 = 4 * attr->index.dim; /* in the sparse stage dk is added up in fp32, then rounded */
    gboolean sparse = run->in[IN_SEL] != NULL;
    op_count_bytes(run, 2, op_out_bytes(run->view, 0) + (sparse ? fp32 * (n_pairs + rows->rows[ROWS_TOKENS]) : 0),
                   op_in_bytes(run->view, IN_Q_INDEX) + op_in_bytes(run->view, IN_W) + dk +
                       (sparse ? fp32 * n_pairs : 0));
    return ok;
}

#if REAL_HAS_CLASS
int dsa_kl_add(Graph *graph, const char *name, const DsaIndexerTensors *indexer, gboolean dense,
               const DsaKlTarget *target, const DsaKlAttr *attr)
{
    DsaKlAttr full = *attr;
    if (full.scale <= 0) {
        full.scale = 1 / sqrt((double)full.head_dim);
    }
    g_assert(graph_tensor(graph, target->q)->width == full.heads * full.head_dim);
    g_assert(graph_tensor(graph, target->k)->width == full.kv_heads * (full.head_dim - full.tail_dim));
    g_assert((full.tail_dim > 0) == (target->k_tail >= 0));
    int loss = graph_add_tensor(graph, name, ROWS_ONE, 1, DTYPE_FP32);
    Op *op = op_add(graph, OP_dsa_kl, name, &full, sizeof full);
    op_input(op, indexer->q);
    op_input(op, indexer->k);
    op_input(op, indexer->w);
    op_input(op, dense ? -1 : indexer->sel);
    op_input(op, target->q);
    op_input(op, target->k);
    op_input(op, target->k_tail);
    op_input(op, target->lse);
    op_output(graph, op, loss);
    return loss;
}

static int64_t kl_pairs(const OpView *view)
{
    int64_t limit = view->op->inputs[IN_SEL] >= 0 ? op_in(view, IN_SEL)->width : 0;
    return sequences_causal_pairs(view->rows, ROWS_TOKENS, limit);
}

static void dsa_kl_saved(const OpView *view, OpSaved *ret_saved)
{
    if (!op_has_backward(view)) {
        return;
    }
    for (int i = 0; i < view->op->n_inputs; i++) {
        ret_saved->inputs |= view->op->inputs[i] >= 0 ? 1u << i : 0;
    }
    op_saved_aux(ret_saved, ROWS_TOKENS, 1, DTYPE_FP32); /* log-sum-exp of the scores */
    op_saved_aux(ret_saved, ROWS_TOKENS, 1, DTYPE_FP32); /* sum of the target before it is normalised */
}

/* Reads of both passes: whole tensors in the dense stage, the selected keys of each token in the sparse one. */
static int64_t kl_read_bytes(const OpView *view)
{
    int64_t bytes =
        op_in_bytes(view, IN_Q_INDEX) + op_in_bytes(view, IN_W) + op_in_bytes(view, IN_Q) + op_in_bytes(view, IN_LSE);
    const int keys[] = {IN_K_INDEX, IN_K, IN_K_TAIL};
    for (int i = 0; i < 3; i++) {
        if (view->op->inputs[keys[i]] >= 0) {
            gboolean gathers = view->op->inputs[IN_SEL] >= 0;
            const GraphTensor *key = op_in(view, keys[i]);
            bytes += gathers ? dtype_bytes(key->dtype, kl_pairs(view) * key->width) : op_in_bytes(view, keys[i]);
        }
    }
    return bytes + (view->op->inputs[IN_SEL] >= 0 ? op_in_bytes(view, IN_SEL) : 0);
}

static void set_shape(const OpView *view, Work *work)
{
    const DsaKlAttr *attr = view->op->attr;
    work->dtype = op_in(view, IN_Q)->dtype;
    work->m = op_rows(view, ROWS_TOKENS);
    work->n = attr->heads;
    work->k = attr->head_dim;
    work->n_groups = sequences_count(view->rows, ROWS_TOKENS);
}

/*
 * Beside the pair: sum and division of the target 2, max, minus, exp and sum of the softmax 4, the loss 6; per row the
 * scaled weights, the log-sum-exp 2 and the sum 1; the mean 2.
 */
static void dsa_kl_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const DsaKlAttr *attr = view->op->attr;
    int64_t rows = op_rows(view, ROWS_TOKENS);
    double flops =
        (double)kl_pairs(view) * (pair_flops(attr) + 12) + (double)rows * (double)(attr->index.heads + 3) + 2;
    int64_t aux = op_has_backward(view) ? dtype_bytes(DTYPE_FP32, 2 * rows) : 0;
    WorkLaw law = view->op->inputs[IN_SEL] >= 0 ? WORK_SPARSE_ATTENTION_FORWARD : WORK_ATTENTION_FORWARD;
    set_shape(view, op_cost_stream(ret_cost, law, flops, kl_read_bytes(view), op_out_bytes(view, 0) + aux));
}

/*
 * Pair: both again, the division 1, softmax 2, dI 2; per index head dw 2, dR 1, dq and dk 4 d. Per row the weights and
 * their gradient 2 J; the factor 2. In the sparse stage dk is added up in fp32 where tokens select the same key.
 */
static void dsa_kl_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const DsaKlAttr *attr = view->op->attr;
    if (!op_has_backward(view)) {
        return;
    }
    int64_t rows = op_rows(view, ROWS_TOKENS);
    int64_t pairs = kl_pairs(view);
    gboolean sparse = view->op->inputs[IN_SEL] >= 0;
    double heads = (double)attr->index.heads;
    double flops = (double)pairs * (pair_flops(attr) + 5 + heads * (4 * (double)attr->index.dim + 3)) +
                   2 * heads * (double)rows + 2;
    int64_t read = kl_read_bytes(view) + dtype_bytes(DTYPE_FP32, 2 * rows) + op_out_bytes(view, 0);
    int64_t write = op_in_bytes(view, IN_Q_INDEX) + op_in_bytes(view, IN_W);
    int64_t scattered = dtype_bytes(DTYPE_FP32, pairs * attr->index.dim);
    if (!sparse) {
        set_shape(view, op_cost_stream(ret_cost, WORK_ATTENTION_BACKWARD, flops, read,
                                       write + op_in_bytes(view, IN_K_INDEX)));
        return;
    }
    int64_t sums = dtype_bytes(DTYPE_FP32, rows * attr->index.dim);
    set_shape(view,
              op_cost_stream(ret_cost, WORK_SPARSE_ATTENTION_BACKWARD, flops, read + scattered, write + scattered));
    op_cost_stream(ret_cost, WORK_COPY, 0, sums, op_in_bytes(view, IN_K_INDEX));
    ret_cost->workspace_bytes = sums;
}

static const int64_t packed_starts[] = {0, 3, 8};

static const struct {
    int64_t rows, top_k;
    gboolean packed, dense;
    DsaKlAttr attr;
} samples[] = {
    {6, 3, FALSE, TRUE, {{2, 3, 3, 1, FALSE, FALSE}, 1, 2, 1, 4, 0, 0}},
    {1, 2, FALSE, FALSE, {{1, 1, 2, 0.5, FALSE, FALSE}, 0.5, 1, 1, 2, 0, 0.3}},
    {8, 3, TRUE, FALSE, {{2, 2, 3, 0.4, TRUE, FALSE}, 0.5, 3, 1, 5, 2, 0}},
    {7, 9, FALSE, FALSE, {{3, 2, 9, 0.7, FALSE, FALSE}, 2, 4, 2, 3, 0, 0}},
};

/* Any q, k and lse make a target; those of a real attention are not needed. */
static gboolean dsa_kl_sample(int idx, Graph *graph, RowCounts *rows)
{
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    const DsaKlAttr *attr = &samples[idx].attr;
    rows->rows[ROWS_ONE] = 1;
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->seq_len = samples[idx].rows;
    rows->rows[ROWS_SEQUENCES] = samples[idx].packed ? (int64_t)G_N_ELEMENTS(packed_starts) - 1 : 1;
    rows->doc_starts = samples[idx].packed ? packed_starts : NULL;
    rows->rows[ROWS_PAIRS] = sequences_all_pairs(rows, ROWS_TOKENS);
    int iq = graph_add_input(graph, "index_q", ROWS_TOKENS, attr->index.heads * attr->index.dim, graph->compute, TRUE);
    int ik = graph_add_input(graph, "index_k", ROWS_TOKENS, attr->index.dim, graph->compute, TRUE);
    int iw = graph_add_input(graph, "index_w", ROWS_TOKENS, attr->index.heads, graph->compute, TRUE);
    DsaIndexerTensors indexer = dsa_indexer_add(graph, "indexer", iq, ik, iw, &attr->index);
    DsaKlTarget target = {.k_tail = -1};
    target.q = graph_add_input(graph, "q", ROWS_TOKENS, attr->heads * attr->head_dim, graph->compute, FALSE);
    target.k = graph_add_input(graph, "k", ROWS_TOKENS, attr->kv_heads * (attr->head_dim - attr->tail_dim),
                               graph->compute, FALSE);
    if (attr->tail_dim > 0) {
        target.k_tail = graph_add_input(graph, "k_tail", ROWS_TOKENS, attr->tail_dim, graph->compute, FALSE);
    }
    target.lse = graph_add_input(graph, "lse", ROWS_TOKENS, attr->heads, DTYPE_FP32, FALSE);
    graph_add_output(graph, dsa_kl_add(graph, "kl", &indexer, samples[idx].dense, &target, attr));
    return TRUE;
}

extern const OpClass op_dsa_kl;
const OpClass op_dsa_kl = {
    .id = "dsa_kl",
    .title = "DSA indexer KL loss",
    .no_grad_inputs = 0xf8,
    .saved = dsa_kl_saved,
    .forward_cost = dsa_kl_forward_cost,
    .backward_cost = dsa_kl_backward_cost,
    .forward = REAL_KERNELS(dsa_kl_forward),
    .backward = REAL_KERNELS(dsa_kl_backward),
    .sample = dsa_kl_sample,
};
#endif
