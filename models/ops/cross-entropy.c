#include "models/ops/cross-entropy.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/ops/loss-row.h"
#include "models/real.h"

enum { IN_LOGITS, IN_LABELS };

REAL_DECLARE(cross_entropy_forward);
REAL_DECLARE(cross_entropy_backward);

/* The logits of a row, capped in scratch when there is a cap. */
static const real *capped_row(const CrossEntropyAttr *attr, const real *row, real *scratch, int64_t vocab)
{
    if (attr->softcap <= 0) {
        return row;
    }
    memcpy(scratch, row, (size_t)vocab * sizeof *row);
    loss_cap(scratch, vocab, (real)attr->softcap);
    return scratch;
}

/* What a chain keeps, in this order; what there is no cap or z-loss for is left out. */
typedef struct CrossEntropyChain {
    real *log_softmax, *tanh, *logits, *lse; /* NULL = not kept */
} CrossEntropyChain;

static CrossEntropyChain chain_of(const OpRun *run)
{
    const CrossEntropyAttr *attr = run->view->op->attr;
    gboolean eager = run->view->op->eager && run->aux[0] != NULL;
    CrossEntropyChain chain = {0};
    int i = 0;
    chain.log_softmax = eager ? run->aux[i++]->data : NULL;
    chain.tanh = eager && attr->softcap > 0 ? run->aux[i++]->data : NULL;
    chain.logits = eager && attr->z_loss > 0 ? run->aux[i++]->data : NULL;
    chain.lse = eager && attr->z_loss > 0 ? run->aux[i]->data : NULL;
    return chain;
}

/* Keeps of row t: z its (capped) logits. */
static void chain_keep(const CrossEntropyAttr *attr, const CrossEntropyChain *chain, int64_t t, const real *z, real lse,
                       int64_t vocab)
{
    for (int64_t v = 0; chain->log_softmax != NULL && v < vocab; v++) {
        chain->log_softmax[t * vocab + v] = z[v] - lse;
        if (chain->tanh != NULL) {
            chain->tanh[t * vocab + v] = z[v] / (real)attr->softcap;
        }
        if (chain->logits != NULL) {
            chain->logits[t * vocab + v] = z[v];
            chain->lse[t] = lse;
        }
    }
}

/* Gradient of row t from what was kept: of the log-softmax, of the z-loss beside it, through the cap. */
static void chain_grad(const CrossEntropyAttr *attr, const CrossEntropyChain *chain, int64_t t, int64_t label,
                       real upstream, int64_t vocab, real *g)
{
    real l = (real)attr->label_smoothing, z_scale = chain->lse != NULL ? 2 * (real)attr->z_loss * chain->lse[t] : 0;
    for (int64_t v = 0; v < vocab; v++) {
        int64_t at = t * vocab + v;
        g[v] = upstream * (real_exp(chain->log_softmax[at]) - l / (real)vocab - (v == label ? 1 - l : 0));
        g[v] += chain->lse != NULL ? upstream * z_scale * real_exp(chain->logits[at] - chain->lse[t]) : 0;
        g[v] *= chain->tanh != NULL ? 1 - chain->tanh[at] * chain->tanh[at] : 1;
    }
}

gboolean REAL_NAME(cross_entropy_forward)(const OpRun *run, GError **error)
{
    const CrossEntropyAttr *attr = run->view->op->attr;
    const LossFlops flops = loss_flops(attr);
    int64_t n = op_rows(run->view, ROWS_TOKENS), vocab = op_in(run->view, IN_LOGITS)->width, n_valid;
    const real *logits = run->in[IN_LOGITS]->data;
    const int64_t *labels = run->in[IN_LABELS]->data;
    const CrossEntropyChain chain = chain_of(run);
    real *out = run->out[0]->data, *lses = run->aux[0] != NULL && chain.log_softmax == NULL ? run->aux[0]->data : NULL;
    real total = 0;
    if (!loss_check_labels(attr, run->in[IN_LABELS], vocab, &n_valid, error)) {
        return FALSE;
    }
    g_autofree real *scratch = g_new(real, (gsize)vocab); /* one row: on chip */
    for (int64_t t = 0; t < n; t++) {
        const real *z = capped_row(attr, logits + t * vocab, scratch, vocab);
        LossState state = loss_state_start();
        loss_scan(&state, z, vocab, 0, labels[t], attr->label_smoothing > 0);
        real lse = loss_lse(&state);
        real loss = labels[t] == attr->ignore_index ? 0 : loss_value(attr, &state, lse, vocab);
        total += loss;
        if (attr->reduction == LOSS_NONE) {
            out[t] = loss;
        }
        if (lses != NULL) {
            lses[t] = lse;
        }
        chain_keep(attr, &chain, t, z, lse, vocab);
        op_count(run, (double)vocab * (flops.cap + flops.scan) + flops.scan_row + flops.value_row, vocab + 1,
                 (lses != NULL ? 1 : 0) + (attr->reduction == LOSS_NONE ? 1 : 0));
    }
    if (attr->reduction != LOSS_NONE) {
        out[0] = attr->reduction == LOSS_SUM || n_valid == 0 ? total : total / (real)n_valid;
        op_count(run, attr->reduction == LOSS_MEAN ? 1 : 0, 0, 1);
    }
    return TRUE;
}

gboolean REAL_NAME(cross_entropy_backward)(const OpRun *run, GError **error)
{
    const CrossEntropyAttr *attr = run->view->op->attr;
    const LossFlops flops = loss_flops(attr);
    int64_t n = op_rows(run->view, ROWS_TOKENS), vocab = op_in(run->view, IN_LOGITS)->width, n_valid;
    gboolean each = attr->reduction == LOSS_NONE;
    const CrossEntropyChain chain = chain_of(run);
    const real *logits = run->in[IN_LOGITS] != NULL ? run->in[IN_LOGITS]->data : NULL, *lses = run->aux[0]->data;
    const int64_t *labels = run->in[IN_LABELS]->data;
    const real *dloss = run->dout[0] != NULL ? run->dout[0]->data : NULL;
    real *dlogits = run->din[IN_LOGITS]->data;
    if (!loss_check_labels(attr, run->in[IN_LABELS], vocab, &n_valid, error)) {
        return FALSE;
    }
    real mean = attr->reduction == LOSS_MEAN && n_valid > 0 ? 1 / (real)n_valid : 1;
    op_count(run, attr->reduction == LOSS_MEAN ? 2 : 0, each ? 0 : 1, 0);
    for (int64_t t = 0; t < n; t++) {
        real *g = dlogits + t * vocab;
        real upstream = dloss == NULL || labels[t] == attr->ignore_index ? 0 : mean * dloss[each ? t : 0];
        if (chain.log_softmax != NULL) {
            chain_grad(attr, &chain, t, labels[t], upstream, vocab, g);
            continue;
        }
        memcpy(g, logits + t * vocab, (size_t)vocab * sizeof *g);
        if (attr->softcap > 0) {
            loss_cap(g, vocab, (real)attr->softcap);
        }
        LossScale scale = loss_scale(attr, upstream, lses[t], vocab);
        loss_grad(g, vocab, labels[t], lses[t], &scale, (real)attr->softcap);
        op_count(run, (double)vocab * (flops.cap + flops.grad) + flops.grad_row + flops.scale_row,
                 vocab + 2 + (each ? 1 : 0), vocab);
    }
    return TRUE;
}

#if REAL_HAS_CLASS
int cross_entropy_add(Graph *graph, const char *name, int logits, int labels, const CrossEntropyAttr *attr)
{
    RowSpace rows = attr->reduction == LOSS_NONE ? graph_tensor(graph, logits)->rows : ROWS_ONE;
    graph_tensor(graph, logits)->tag = MEM_LOGITS;
    int loss = graph_add_tensor(graph, name, rows, 1, op_wide_dtype(graph));
    Op *op = op_add(graph, OP_cross_entropy, name, attr, sizeof *attr);
    op_input(op, logits);
    op_input(op, labels);
    op_output(graph, op, loss);
    return loss;
}

/* Sizes of one call. */
typedef struct CrossEntropySize {
    const CrossEntropyAttr *attr;
    int64_t n, vocab;
    int64_t b, wide; /* bytes of a logit, and of its upcast copy */
    int64_t idx;     /* bytes of a label */
    gboolean upcast;
} CrossEntropySize;

static CrossEntropySize cross_entropy_size(const OpView *view)
{
    const GraphTensor *logits = op_in(view, IN_LOGITS);
    CrossEntropySize s = {
        .attr = view->op->attr,
        .n = op_rows(view, logits->rows),
        .vocab = logits->width,
        .b = dtype_bytes(logits->dtype, 1),
        .wide = dtype_bytes(op_wide_dtype(view->graph), 1),
        .idx = dtype_bytes(DTYPE_INT64, 1),
    };
    s.upcast = s.b != s.wide;
    return s;
}

/*
 * Fused: the logits and one log-sum-exp per row. Eager (F.cross_entropy(logits.float(), labels)): the log-softmax; of
 * the soft cap its tanh, of the z-loss the upcast logits and the log-sum-exp.
 */
static void cross_entropy_saved(const OpView *view, OpSaved *ret_saved)
{
    CrossEntropySize s = cross_entropy_size(view);
    Dtype wide = op_wide_dtype(view->graph);
    *ret_saved = (OpSaved){0};
    if (!op_needs_input_grad(view, IN_LOGITS)) {
        return;
    }
    RowSpace rows = op_in(view, IN_LOGITS)->rows;
    ret_saved->inputs = 1u << IN_LABELS;
    if (!view->op->eager) {
        ret_saved->inputs |= 1u << IN_LOGITS;
        op_saved_aux(ret_saved, rows, 1, wide);
        return;
    }
    op_saved_aux(ret_saved, rows, s.vocab, wide);
    if (s.attr->softcap > 0) {
        op_saved_aux(ret_saved, rows, s.vocab, wide);
    }
    if (s.attr->z_loss > 0) {
        op_saved_aux(ret_saved, rows, s.vocab, wide);
        op_saved_aux(ret_saved, rows, 1, wide);
    }
}

/* A row-wise kernel over the logits. */
static void row_kernel(OpCost *cost, const CrossEntropySize *s, double flops, int64_t read_bytes, int64_t write_bytes)
{
    Work *work = op_cost_stream(cost, WORK_SOFTMAX, flops, read_bytes, write_bytes);
    work->m = s->n;
    work->n = s->vocab;
}

static void eager_forward_cost(const CrossEntropySize *s, OpCost *cost)
{
    const CrossEntropyAttr *attr = s->attr;
    int64_t logits = s->n * s->vocab, wide = logits * s->wide;
    double elems = (double)logits;
    if (s->upcast) {
        op_cost_stream(cost, WORK_COPY, 0, logits * s->b, wide);
    }
    for (int i = 0; attr->softcap > 0 && i < 3; i++) { /* divide, tanh, multiply */
        op_cost_stream(cost, WORK_ELEMENTWISE, elems, wide, wide);
    }
    row_kernel(cost, s, 5 * elems, wide, wide);                                          /* log-softmax */
    op_cost_stream(cost, WORK_REDUCE, (double)s->n, s->n * (s->idx + s->wide), s->wide); /* negative log-likelihood */
    if (attr->label_smoothing > 0) {
        op_cost_stream(cost, WORK_REDUCE, elems, wide, s->n * s->wide);
        op_cost_stream(cost, WORK_REDUCE, (double)s->n, s->n * s->wide, s->wide);
    }
    if (attr->z_loss > 0) { /* maximum, exponentials, their sum; square and its mean */
        op_cost_stream(cost, WORK_REDUCE, elems, wide, s->n * s->wide);
        op_cost_stream(cost, WORK_ELEMENTWISE, 2 * elems, wide, wide);
        op_cost_stream(cost, WORK_REDUCE, elems, wide, s->n * s->wide);
        op_cost_stream(cost, WORK_REDUCE, 2 * (double)s->n, s->n * s->wide, s->wide);
    }
}

/*
 * Memory: the half-precision logits die once they are upcast, so the chain's most (upcast copy and log-softmax) is less
 * than logits and log-softmax by a copy in high precision less the logits themselves.
 */
static void cross_entropy_forward_cost(const OpView *view, OpCost *ret_cost)
{
    CrossEntropySize s = cross_entropy_size(view);
    const LossFlops f = loss_flops(s.attr);
    double rows = (double)s.n, elems = rows * (double)s.vocab;
    gboolean each = s.attr->reduction == LOSS_NONE, kept = op_needs_input_grad(view, IN_LOGITS);
    *ret_cost = (OpCost){0};
    if (view->op->eager) {
        int64_t copies = (s.attr->softcap > 0 ? 1 : 0) + (s.attr->z_loss > 0 ? 1 : 0);
        eager_forward_cost(&s, ret_cost);
        ret_cost->workspace_bytes = s.n * s.vocab * ((s.upcast ? s.wide - s.b : 0) + copies * s.wide);
        return;
    }
    double flops =
        elems * (f.cap + f.scan) + rows * (f.scan_row + f.value_row) + (s.attr->reduction == LOSS_MEAN ? 1 : 0);
    row_kernel(ret_cost, &s, flops, s.n * (s.vocab * s.b + s.idx),
               (kept ? s.n * s.wide : 0) + (each ? s.n : 1) * s.wide);
}

static void eager_backward_cost(const CrossEntropySize *s, OpCost *cost)
{
    const CrossEntropyAttr *attr = s->attr;
    int64_t logits = s->n * s->vocab, wide = logits * s->wide;
    double elems = (double)logits;
    op_cost_stream(cost, WORK_COPY, 0, 0, wide);                                    /* zeros */
    op_cost_stream(cost, WORK_REDUCE, (double)s->n, s->n * s->idx, s->n * s->wide); /* one entry a row */
    if (attr->label_smoothing > 0) {
        op_cost_stream(cost, WORK_ELEMENTWISE, elems, wide + s->n * s->wide, wide);
    }
    row_kernel(cost, s, 4 * elems, 2 * wide, wide); /* log-softmax backward */
    if (attr->z_loss > 0) {                         /* exp(z - lse) times its gradient, then the sum of both paths */
        op_cost_stream(cost, WORK_ELEMENTWISE, 2 * elems, wide + s->n * s->wide, wide);
        op_cost_stream(cost, WORK_ELEMENTWISE, elems, wide + s->n * s->wide, wide);
        op_cost_stream(cost, WORK_ELEMENTWISE, elems, 2 * wide, wide);
    }
    if (attr->softcap > 0) { /* multiply, tanh backward, divide */
        op_cost_stream(cost, WORK_ELEMENTWISE, elems, wide, wide);
        op_cost_stream(cost, WORK_ELEMENTWISE, 3 * elems, 2 * wide, wide);
        op_cost_stream(cost, WORK_ELEMENTWISE, elems, wide, wide);
    }
    if (s->upcast) {
        op_cost_stream(cost, WORK_COPY, 0, wide, logits * s->b);
    }
}

/*
 * Memory of the eager chain: beside the log-softmax the two gradients on its either side exist at once; the gradient of
 * the logits themselves is made after both the log-softmax and the first of them are gone.
 */
static void cross_entropy_backward_cost(const OpView *view, OpCost *ret_cost)
{
    CrossEntropySize s = cross_entropy_size(view);
    const LossFlops f = loss_flops(s.attr);
    double rows = (double)s.n, elems = rows * (double)s.vocab;
    gboolean each = s.attr->reduction == LOSS_NONE;
    *ret_cost = (OpCost){0};
    if (!op_needs_input_grad(view, IN_LOGITS)) {
        return;
    }
    if (view->op->eager) {
        eager_backward_cost(&s, ret_cost);
        ret_cost->workspace_bytes = s.n * s.vocab * (s.upcast ? 2 * s.wide - s.b : s.wide);
        return;
    }
    double flops =
        elems * (f.cap + f.grad) + rows * (f.grad_row + f.scale_row) + (s.attr->reduction == LOSS_MEAN ? 2 : 0);
    row_kernel(ret_cost, &s, flops, s.n * (s.vocab * s.b + s.idx + s.wide) + (each ? s.n : 1) * s.wide,
               s.n * s.vocab * s.b);
}

static const struct {
    int64_t n, vocab;
    CrossEntropyAttr attr;
} samples[] = {
    {5, 7, {CROSS_ENTROPY_IGNORE, 0, 0, 0, LOSS_MEAN}},
    {6, 11, {CROSS_ENTROPY_IGNORE, 0.1, 0.01, 5, LOSS_SUM}},
    {3, 4, {CROSS_ENTROPY_IGNORE, 0.2, 0, 0, LOSS_NONE}},
    {4, 1, {CROSS_ENTROPY_IGNORE, 0, 0.1, 0, LOSS_MEAN}},
    {1, 9, {2, 0, 0, 3, LOSS_MEAN}}, /* its only label is the ignored one */
};

static gboolean cross_entropy_sample(int idx, Graph *graph, RowCounts *rows)
{
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    rows->rows[ROWS_TOKENS] = samples[idx].n;
    rows->seq_len = samples[idx].n;
    int logits = graph_add_input(graph, "logits", ROWS_TOKENS, samples[idx].vocab, graph->compute, TRUE);
    int labels = graph_add_input(graph, "labels", ROWS_TOKENS, 1, DTYPE_INT64, FALSE);
    graph_add_output(graph, cross_entropy_add(graph, "loss", logits, labels, &samples[idx].attr));
    return TRUE;
}

/* Every label once, every third token ignored. */
static void cross_entropy_sample_fill(int idx, const OpView *view, Tensor *const *in, Tensor *const *param)
{
    const CrossEntropyAttr *attr = view->op->attr;
    (void)param;
    for (int64_t t = 0; t < samples[idx].n; t++) {
        tensor_set(in[IN_LABELS], t, (double)(t % 3 == 2 ? attr->ignore_index : (2 + 5 * t) % samples[idx].vocab));
    }
}

extern const OpClass op_cross_entropy;
const OpClass op_cross_entropy = {
    .id = "cross_entropy",
    .title = "cross entropy",
    .is_loss = TRUE,
    .no_grad_inputs = 1u << IN_LABELS,
    .saved = cross_entropy_saved,
    .forward_cost = cross_entropy_forward_cost,
    .backward_cost = cross_entropy_backward_cost,
    .forward = REAL_KERNELS(cross_entropy_forward),
    .backward = REAL_KERNELS(cross_entropy_backward),
    .sample = cross_entropy_sample,
    .sample_fill = cross_entropy_sample_fill,
};
#endif
