#include "models/ops/attention.h"

#include <math.h>
#include <string.h>

#include "models/matmul.h"
#include "models/op-name.h"
#include "models/op.h"
#include "models/real-math.h"
#include "models/real.h"
#include "models/sequences.h"
#include "models/values.h"

REAL_DECLARE(attention_forward);
REAL_DECLARE(attention_backward);

enum { IN_Q, IN_K, IN_V, OUT_O = 0, OUT_LSE };
enum { BLOCK_ROWS = 64 }; /* queries of one head that are computed together */

/* One head of one sequence, and a block of its queries. */
typedef struct HeadBlock {
    const AttentionAttr *attr;
    int64_t head, kv_head;
    int64_t start, end;                     /* rows of the sequence */
    int64_t first, last;                    /* rows of the block */
    int64_t key_first, key_last;            /* keys that any of its rows sees */
    int64_t q_step, k_step, v_step, o_step; /* row lengths */
} HeadBlock;

static HeadBlock head_block(const OpRun *run, int64_t sequence, int64_t head, int64_t first)
{
    const AttentionAttr *attr = run->view->op->attr;
    RowSpace space = op_in(run->view, IN_Q)->rows;
    HeadBlock b = {.attr = attr, .head = head, .kv_head = head / (attr->heads / attr->kv_heads), .first = first};
    b.start = sequences_start(run->view->rows, space, sequence);
    b.end = sequences_start(run->view->rows, space, sequence + 1);
    b.last = MIN(first + BLOCK_ROWS, b.end);
    b.key_first = attr->causal && attr->window > 0 ? MAX(b.start, first - attr->window + 1) : b.start;
    b.key_last = attr->causal ? b.last : b.end;
    b.q_step = attr->heads * attr->head_dim;
    b.k_step = attr->kv_heads * attr->head_dim;
    b.v_step = attr->kv_heads * attr->v_dim;
    b.o_step = attr->heads * attr->v_dim;
    return b;
}

/* Keys that a row sees, as columns of the block's scores. */
static void visible_keys(const HeadBlock *b, int64_t row, int64_t *ret_from, int64_t *ret_to)
{
    *ret_from = 0;
    *ret_to = b->key_last - b->key_first;
    if (b->attr->causal) {
        *ret_to = row + 1 - b->key_first;
        *ret_from = b->attr->window > 0 ? MAX(row + 1 - b->attr->window, b->key_first) - b->key_first : 0;
    }
}

static const real *q_rows(const HeadBlock *b, const real *q)
{
    return q + b->first * b->q_step + b->head * b->attr->head_dim;
}

static const real *k_rows(const HeadBlock *b, const real *k)
{
    return k + b->key_first * b->k_step + b->kv_head * b->attr->head_dim;
}

static const real *v_rows(const HeadBlock *b, const real *v)
{
    return v + b->key_first * b->v_step + b->kv_head * b->attr->v_dim;
}

/* scores = q kt, rows x keys. */
static void block_scores(const HeadBlock *b, const real *q, const real *k, real *scores)
{
    Matmul shape = {
        .m = b->last - b->first, .n = b->key_last - b->key_first, .k = b->attr->head_dim, .trans_b = TRUE, .alpha = 1};
    shape.lda = b->q_step;
    shape.ldb = b->k_step;
    shape.ldc = shape.n;
    REAL_NAME(matmul)(&shape, q_rows(b, q), k_rows(b, k), scores);
}

/* Turns a row of scores into exp(scaled score - max) and returns their sum; what is not seen becomes 0. */
static real softmax_row(const HeadBlock *b, int64_t row, const real *sinks, real *scores, real *ret_max)
{
    int64_t from, to;
    int64_t n = b->key_last - b->key_first;
    real scale = (real)b->attr->scale;
    visible_keys(b, row, &from, &to);
    real max = sinks != NULL ? sinks[b->head] : scores[from] * scale;
    for (int64_t s = from; s < to; s++) {
        scores[s] *= scale;
        max = MAX(max, scores[s]);
    }
    real sum = sinks != NULL ? real_exp(sinks[b->head] - max) : 0;
    for (int64_t s = 0; s < n; s++) {
        scores[s] = s < from || s >= to ? 0 : real_exp(scores[s] - max);
        sum += scores[s];
    }
    *ret_max = max;
    return sum;
}

static void forward_block(const OpRun *run, const HeadBlock *b, real *scores)
{
    const AttentionAttr *attr = b->attr;
    int64_t n_keys = b->key_last - b->key_first;
    real *o = values_out(run, OUT_O) + b->first * b->o_step + b->head * attr->v_dim;
    real sums[BLOCK_ROWS];
    block_scores(b, values_in(run, IN_Q), values_in(run, IN_K), scores);
    for (int64_t t = b->first; t < b->last; t++) {
        int64_t from, to;
        real max;
        visible_keys(b, t, &from, &to);
        sums[t - b->first] = softmax_row(b, t, values_param(run, 0), scores + (t - b->first) * n_keys, &max);
        values_out(run, OUT_LSE)[t * attr->heads + b->head] = max + real_log(sums[t - b->first]);
        double pair = 2 * (double)(attr->head_dim + attr->v_dim) + 5;
        op_count_bytes(run, pair * (double)(to - from) + (double)(attr->v_dim + 2) + (attr->sinks ? 4 : 0), 0, 0);
    }
    Matmul shape = {.m = b->last - b->first,
                    .n = attr->v_dim,
                    .k = n_keys,
                    .lda = n_keys,
                    .ldb = b->v_step,
                    .ldc = b->o_step,
                    .alpha = 1};
    REAL_NAME(matmul)(&shape, scores, v_rows(b, values_in(run, IN_V)), o);
    for (int64_t t = 0; t < b->last - b->first; t++) {
        for (int64_t j = 0; j < attr->v_dim; j++) {
            o[t * b->o_step + j] /= sums[t];
        }
    }
}

/* Calls `block` for every head and block of queries, with scratch for n_scratch matrices of scores. */
static void each_block(const OpRun *run, int n_scratch,
                       void (*block)(const OpRun *run, const HeadBlock *b, real *scratch))
{
    const AttentionAttr *attr = run->view->op->attr;
    RowSpace space = op_in(run->view, IN_Q)->rows;
    int64_t longest = sequences_longest(run->view->rows, space);
    g_autofree real *scratch = g_new(real, (gsize)(n_scratch * BLOCK_ROWS * longest + 1));
    for (int64_t q = 0; q < sequences_count(run->view->rows, space); q++) {
        int64_t end = sequences_start(run->view->rows, space, q + 1);
        for (int64_t head = 0; head < attr->heads; head++) {
            for (int64_t first = sequences_start(run->view->rows, space, q); first < end; first += BLOCK_ROWS) {
                HeadBlock b = head_block(run, q, head, first);
                block(run, &b, scratch);
            }
        }
    }
}

/* Whole tensors that a flash kernel moves, however it is blocked. */
static int64_t tensor_bytes(const OpRun *run)
{
    return op_in_bytes(run->view, IN_Q) + op_in_bytes(run->view, IN_K) + op_in_bytes(run->view, IN_V);
}

gboolean REAL_NAME(attention_forward)(const OpRun *run, GError **error)
{
    (void)error;
    each_block(run, 1, forward_block);
    op_count_bytes(run, 0, tensor_bytes(run) + (run->param[0] != NULL ? op_weight_bytes(run->view, 0) : 0),
                   op_out_bytes(run->view, OUT_O) + op_out_bytes(run->view, OUT_LSE));
    if (run->aux[0] != NULL) {
        memcpy(run->aux[0]->data, run->out[OUT_O]->data, (size_t)tensor_numel(run->aux[0]) * sizeof(real));
    }
    return TRUE;
}

/* The forward result: the output, or the copy of it that the chain of framework operators keeps. */
static const real *kept_output(const OpRun *run)
{
    return run->out[OUT_O] != NULL ? values_out(run, OUT_O) : values_aux(run, 0);
}

/* From scores and dp = do vt to p and ds = p (dp - D) scale, in place. */
static void score_gradients(const OpRun *run, const HeadBlock *b, real *p, real *ds)
{
    const AttentionAttr *attr = b->attr;
    const real *sinks = values_param(run, 0);
    real *dsinks = values_dparam(run, 0);
    int64_t n_keys = b->key_last - b->key_first;
    real scale = (real)attr->scale;
    for (int64_t t = b->first; t < b->last; t++) {
        const real *o = kept_output(run) + t * b->o_step + b->head * attr->v_dim;
        const real *dout = values_dout(run, OUT_O) + t * b->o_step + b->head * attr->v_dim;
        real lse = values_out(run, OUT_LSE)[t * attr->heads + b->head];
        real product = 0;
        int64_t from, to;
        visible_keys(b, t, &from, &to);
        for (int64_t j = 0; j < attr->v_dim; j++) {
            product += dout[j] * o[j];
        }
        for (int64_t s = 0; s < n_keys; s++) {
            int64_t at = (t - b->first) * n_keys + s;
            p[at] = s < from || s >= to ? 0 : real_exp(p[at] * scale - lse);
            ds[at] = p[at] * (ds[at] - product) * scale;
        }
        if (dsinks != NULL) {
            dsinks[b->head] -= real_exp(sinks[b->head] - lse) * product;
        }
        double pair = 6 * (double)attr->head_dim + 4 * (double)attr->v_dim + 6;
        op_count_bytes(run, pair * (double)(to - from) + 2 * (double)attr->v_dim + (dsinks != NULL ? 4 : 0), 0, 0);
    }
}

/* dq, dk, dv of a block; those that are not wanted are not made. */
static void backward_block(const OpRun *run, const HeadBlock *b, real *scratch)
{
    const AttentionAttr *attr = b->attr;
    int64_t n = b->last - b->first;
    int64_t n_keys = b->key_last - b->key_first;
    const real *dout = values_dout(run, OUT_O) + b->first * b->o_step + b->head * attr->v_dim;
    real *p = scratch;
    real *ds = scratch + n * n_keys;
    block_scores(b, values_in(run, IN_Q), values_in(run, IN_K), p);
    Matmul dp = {.m = n,
                 .n = n_keys,
                 .k = attr->v_dim,
                 .trans_b = TRUE,
                 .lda = b->o_step,
                 .ldb = b->v_step,
                 .ldc = n_keys,
                 .alpha = 1};
    REAL_NAME(matmul)(&dp, dout, v_rows(b, values_in(run, IN_V)), ds);
    score_gradients(run, b, p, ds);
    if (run->din[IN_Q] != NULL) {
        Matmul dq = {
            .m = n, .n = attr->head_dim, .k = n_keys, .lda = n_keys, .ldb = b->k_step, .ldc = b->q_step, .alpha = 1};
        REAL_NAME(matmul)
        (&dq, ds, k_rows(b, values_in(run, IN_K)),
         values_din(run, IN_Q) + b->first * b->q_step + b->head * attr->head_dim);
    }
    if (run->din[IN_K] != NULL) {
        Matmul dk = {.m = n_keys,
                     .n = attr->head_dim,
                     .k = n,
                     .trans_a = TRUE,
                     .lda = n_keys,
                     .ldb = b->q_step,
                     .ldc = b->k_step,
                     .alpha = 1,
                     .beta = 1};
        REAL_NAME(matmul)
        (&dk, ds, q_rows(b, values_in(run, IN_Q)),
         values_din(run, IN_K) + b->key_first * b->k_step + b->kv_head * attr->head_dim);
    }
    if (run->din[IN_V] != NULL) {
        Matmul dv = {.m = n_keys,
                     .n = attr->v_dim,
                     .k = n,
                     .trans_a = TRUE,
                     .lda = n_keys,
                     .ldb = b->o_step,
                     .ldc = b->v_step,
                     .alpha = 1,
                     .beta = 1};
        REAL_NAME(matmul)(&dv, p, dout, values_din(run, IN_V) + b->key_first * b->v_step + b->kv_head * attr->v_dim);
    }
}

gboolean REAL_NAME(attention_backward)(const OpRun *run, GError **error)
{
    const OpView *view = run->view;
    (void)error;
    values_zero_gradients(run);
    if (run->dout[OUT_O] == NULL) {
        return TRUE;
    }
    each_block(run, 2, backward_block);
    int64_t sinks = run->dparam[0] != NULL ? op_weight_bytes(view, 0) : 0;
    op_count_bytes(run, 0, tensor_bytes(run) + 2 * op_out_bytes(view, OUT_O) + op_out_bytes(view, OUT_LSE) + sinks,
                   tensor_bytes(run) + sinks);
    return TRUE;
}

#if REAL_HAS_CLASS
AttentionTensors attention_add(Graph *graph, const char *name, int q, int k, int v, const AttentionAttr *attr)
{
    const GraphTensor in = *graph_tensor(graph, q);
    AttentionAttr full = *attr;
    g_assert(full.kv_heads > 0 && full.heads % full.kv_heads == 0 && in.width == full.heads * full.head_dim);
    g_assert(graph_tensor(graph, k)->width == full.kv_heads * full.head_dim);
    g_assert(graph_tensor(graph, v)->width == full.kv_heads * full.v_dim);
    if (full.scale <= 0) {
        full.scale = 1 / sqrt((double)full.head_dim);
    }
    int sinks = -1;
    if (full.sinks) {
        sinks = graph_add_param(graph, op_name(name, "sinks").text, PARAM_VECTOR, full.heads, 0, 0);
    }
    AttentionTensors t = {
        .o = graph_add_tensor(graph, name, in.rows, full.heads * full.v_dim, in.dtype),
        .lse = graph_add_tensor(graph, op_name(name, "lse").text, in.rows, full.heads, DTYPE_FP32),
    };
    Op *op = op_add(graph, OP_attention, name, &full, sizeof full);
    op_input(op, q);
    op_input(op, k);
    op_input(op, v);
    op_param(graph, op, sinks);
    op_output(graph, op, t.o);
    op_output(graph, op, t.lse);
    return t;
}

/* Query-key pairs that one head computes. */
static double attention_pairs(const OpView *view)
{
    const AttentionAttr *attr = view->op->attr;
    RowSpace space = op_in(view, 0)->rows;
    return (double)(attr->causal ? sequences_causal_pairs(view->rows, space, attr->window)
                                 : sequences_all_pairs(view->rows, space));
}

/* The framework's rotation leaves queries head by head; the result then lies so too, and is copied token by token. */
static gboolean copies_output(const OpView *view)
{
    gboolean rope_eager;
    return view->op->eager && op_in_maker(view, 0, &rope_eager) == OP_rope && rope_eager;
}

static void attention_saved(const OpView *view, OpSaved *ret_saved)
{
    const GraphTensor *o = op_out(view, 0);
    if (!op_has_backward(view)) {
        return;
    }
    ret_saved->inputs = 7;
    ret_saved->outputs = 2;
    if (copies_output(view)) {
        op_saved_aux(ret_saved, o->rows, o->width, o->dtype);
        ret_saved->copied_outputs = 1;
    } else {
        ret_saved->outputs |= 1;
    }
}

static void set_shape(const OpView *view, Work *work)
{
    const AttentionAttr *attr = view->op->attr;
    work->dtype = op_in(view, 0)->dtype;
    work->m = op_rows(view, op_in(view, 0)->rows);
    work->n = attr->heads;
    work->k = attr->head_dim;
    work->n_groups = sequences_count(view->rows, op_in(view, 0)->rows);
}

static int64_t qkv_bytes(const OpView *view)
{
    return op_in_bytes(view, 0) + op_in_bytes(view, 1) + op_in_bytes(view, 2);
}

/*
 * kernels.md 4.3: two products per pair, 2 (d + dv); scale, max, minus, exp and sum 5; per row the division dv and the
 * log-sum-exp 2. A sink takes part in max and sum: 4.
 */
static void attention_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const AttentionAttr *attr = view->op->attr;
    double rows = (double)op_rows(view, op_in(view, 0)->rows) * (double)attr->heads;
    double pairs = attention_pairs(view) * (double)attr->heads;
    double flops = pairs * (2 * (double)(attr->head_dim + attr->v_dim) + 5) + rows * ((double)attr->v_dim + 2);
    int64_t read = qkv_bytes(view);
    if (attr->sinks) {
        flops += 4 * rows;
        read += op_weight_bytes(view, 0);
    }
    set_shape(view, op_cost_stream(ret_cost, WORK_ATTENTION_FORWARD, flops, read,
                                   op_out_bytes(view, 0) + op_out_bytes(view, 1)));
    ret_cost->pointwise_flops = 5 * pairs;
    if (copies_output(view)) {
        op_cost_stream(ret_cost, WORK_STRIDED, 0, op_out_bytes(view, 0), op_out_bytes(view, 0));
    }
}

/*
 * Five products per pair, 6 d + 4 dv; scale, p = exp(s - lse) 3; ds = p (dp - D) scale 3; per row D = do o: 2 dv. A
 * sink's gradient, -sum p_sink D: 4 per row.
 */
static void attention_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const AttentionAttr *attr = view->op->attr;
    if (!op_has_backward(view)) {
        return;
    }
    int64_t n = op_rows(view, op_in(view, 0)->rows);
    double rows = (double)n * (double)attr->heads;
    double pairs = attention_pairs(view) * (double)attr->heads;
    double flops = pairs * (6 * (double)attr->head_dim + 4 * (double)attr->v_dim + 6) + rows * 2 * (double)attr->v_dim;
    int64_t read = qkv_bytes(view) + 2 * op_out_bytes(view, 0) + op_out_bytes(view, 1);
    int64_t write = qkv_bytes(view);
    if (op_trains_param(view, 0)) {
        flops += 4 * rows;
        read += op_weight_bytes(view, 0);
        write += op_weight_bytes(view, 0);
    }
    set_shape(view, op_cost_stream(ret_cost, WORK_ATTENTION_BACKWARD, flops, read, write));
    ret_cost->pointwise_flops = 6 * pairs;
    /* The kernels hold dq in fp32 and D; with grouped queries dk and dv of every query head. */
    ret_cost->workspace_bytes = dtype_bytes(DTYPE_FP32, n * attr->heads * (attr->head_dim + 1));
    if (attr->kv_heads < attr->heads) {
        ret_cost->workspace_bytes += op_in_elem_bytes(view, 1) * n * attr->heads * (attr->head_dim + attr->v_dim);
    }
}

static const int64_t packed_starts[] = {0, 4, 5, 9};

static const struct {
    int64_t rows, seq_len;
    gboolean packed;
    AttentionAttr attr;
} samples[] = {
    {6, 3, FALSE, {2, 2, 4, 4, 0, TRUE, 0, FALSE}},   {7, 7, FALSE, {6, 2, 5, 3, 0.3, TRUE, 0, FALSE}},
    {1, 1, FALSE, {1, 1, 1, 1, 0, TRUE, 0, FALSE}},   {5, 5, FALSE, {3, 1, 4, 6, 0, FALSE, 0, FALSE}},
    {9, 9, TRUE, {4, 2, 2, 3, 0, TRUE, 0, FALSE}},    {8, 8, FALSE, {2, 1, 3, 3, 0, TRUE, 3, TRUE}},
    {70, 70, FALSE, {1, 1, 2, 1, 0, TRUE, 0, FALSE}},
};

static gboolean attention_sample(int idx, Graph *graph, RowCounts *rows)
{
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    const AttentionAttr *attr = &samples[idx].attr;
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->seq_len = samples[idx].seq_len;
    rows->rows[ROWS_SEQUENCES] =
        samples[idx].packed ? (int64_t)G_N_ELEMENTS(packed_starts) - 1 : samples[idx].rows / samples[idx].seq_len;
    rows->doc_starts = samples[idx].packed ? packed_starts : NULL;
    rows->rows[ROWS_PAIRS] = sequences_all_pairs(rows, ROWS_TOKENS);
    int q = graph_add_input(graph, "q", ROWS_TOKENS, attr->heads * attr->head_dim, graph->compute, TRUE);
    int k = graph_add_input(graph, "k", ROWS_TOKENS, attr->kv_heads * attr->head_dim, graph->compute, TRUE);
    int v = graph_add_input(graph, "v", ROWS_TOKENS, attr->kv_heads * attr->v_dim, graph->compute, TRUE);
    AttentionTensors t = attention_add(graph, "attn", q, k, v, attr);
    graph_add_output(graph, t.o);
    return TRUE;
}

extern const OpClass op_attention;
const OpClass op_attention = {
    .id = "attention",
    .title = "attention",
    .keep = OP_KEEP_ATTENTION,
    .no_grad_outputs = 2,
    .saved = attention_saved,
    .forward_cost = attention_forward_cost,
    .backward_cost = attention_backward_cost,
    .forward = REAL_KERNELS(attention_forward),
    .backward = REAL_KERNELS(attention_backward),
    .sample = attention_sample,
};
#endif
