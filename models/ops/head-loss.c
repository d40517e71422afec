#include "models/ops/head-loss.h"

#include "models/matmul.h"
#include "models/op-name.h"
#include "models/op.h"
#include "models/ops/loss-row.h"
#include "models/real.h"

typedef struct HeadLossAttr {
    CrossEntropyAttr loss;
    int64_t vocab_chunk; /* columns of a slice */
} HeadLossAttr;

enum { IN_X, IN_LABELS };

REAL_DECLARE(head_loss_forward);
REAL_DECLARE(head_loss_backward);

/* Sizes and operands of one run. */
typedef struct HeadLossRun {
    const HeadLossAttr *attr;
    LossFlops flops;
    int64_t n, h, vocab, n_valid;
    const real *x, *weight;
    const int64_t *labels;
    int64_t allocated; /* elements */
} HeadLossRun;

static gboolean head_loss_run_init(HeadLossRun *r, const OpRun *run, GError **error)
{
    const HeadLossAttr *attr = run->view->op->attr;
    *r = (HeadLossRun){
        .attr = attr,
        .flops = loss_flops(&attr->loss),
        .n = op_rows(run->view, ROWS_TOKENS),
        .h = op_in(run->view, IN_X)->width,
        .vocab = op_weight(run->view, 0)->dims[0],
        .x = run->in[IN_X]->data,
        .weight = run->param[0]->data,
        .labels = run->in[IN_LABELS]->data,
    };
    return loss_check_labels(&attr->loss, run->in[IN_LABELS], r->vocab, &r->n_valid, error);
}

/* Working memory, counted. */
static real *head_loss_alloc(HeadLossRun *r, const OpRun *run, int64_t n)
{
    r->allocated += n;
    if (run->counter != NULL) {
        run->counter->workspace_bytes = MAX(run->counter->workspace_bytes, r->allocated * (int64_t)sizeof(double));
    }
    return g_new0(real, (gsize)n);
}

/* Logits of the columns first ... first + c, capped: tile [n, c]. */
static void head_loss_tile(const HeadLossRun *r, const OpRun *run, int64_t first, int64_t c, real *tile)
{
    const Matmul product = {.m = r->n, .n = c, .k = r->h, .trans_b = TRUE};
    REAL_NAME(matmul_dense)(product, r->x, r->weight + first * r->h, tile);
    if (r->attr->loss.softcap > 0) {
        loss_cap(tile, r->n * c, (real)r->attr->loss.softcap);
    }
    op_count(run, (double)(r->n * c) * (2 * (double)r->h + r->flops.cap), r->n * r->h + c * r->h, 0);
}

/* Losses of all rows from their states; lses may be NULL. */
static void head_loss_values(const HeadLossRun *r, const OpRun *run, const LossState *states, real *lses)
{
    const CrossEntropyAttr *attr = &r->attr->loss;
    real *out = run->out[0]->data, total = 0;
    gboolean each = attr->reduction == LOSS_NONE;
    for (int64_t t = 0; t < r->n; t++) {
        real lse = loss_lse(&states[t]);
        real loss = r->labels[t] == attr->ignore_index ? 0 : loss_value(attr, &states[t], lse, r->vocab);
        total += loss;
        if (lses != NULL) {
            lses[t] = lse;
        }
        if (each) {
            out[t] = loss;
        }
        op_count(run, r->flops.value_row, 1, (each ? 1 : 0) + (lses != NULL ? 1 : 0));
    }
    if (!each) {
        out[0] = attr->reduction == LOSS_SUM || r->n_valid == 0 ? total : total / (real)r->n_valid;
        op_count(run, attr->reduction == LOSS_MEAN ? 1 : 0, 0, 1);
    }
}

gboolean REAL_NAME(head_loss_forward)(const OpRun *run, GError **error)
{
    HeadLossRun r;
    if (!head_loss_run_init(&r, run, error)) {
        return FALSE;
    }
    gboolean smooth = r.attr->loss.label_smoothing > 0;
    int64_t chunk = r.attr->vocab_chunk;
    g_autofree real *tile = head_loss_alloc(&r, run, r.n * chunk);
    g_autofree real *state_mem = head_loss_alloc(&r, run, r.n * (int64_t)(sizeof(LossState) / sizeof(real)));
    LossState *states = (LossState *)(void *)state_mem;
    for (int64_t t = 0; t < r.n; t++) {
        states[t] = loss_state_start();
    }
    for (int64_t first = 0; first < r.vocab && r.n > 0; first += chunk) {
        int64_t c = MIN(chunk, r.vocab - first);
        head_loss_tile(&r, run, first, c, tile);
        for (int64_t t = 0; t < r.n; t++) {
            loss_scan(&states[t], tile + t * c, c, first, r.labels[t], smooth);
        }
        op_count(run, (double)(r.n * c) * r.flops.scan + (double)r.n * r.flops.scan_row, 0, 0);
    }
    head_loss_values(&r, run, states, run->aux[0] != NULL ? run->aux[0]->data : NULL);
    return TRUE;
}

/* Turns a tile of logits into gradients. */
static void head_loss_tile_grad(const HeadLossRun *r, const OpRun *run, int64_t first, int64_t c, real *tile)
{
    const CrossEntropyAttr *attr = &r->attr->loss;
    gboolean each = attr->reduction == LOSS_NONE;
    const real *dloss = run->dout[0] != NULL ? run->dout[0]->data : NULL, *lses = run->aux[0]->data;
    real mean = attr->reduction == LOSS_MEAN && r->n_valid > 0 ? 1 / (real)r->n_valid : 1;
    for (int64_t t = 0; t < r->n; t++) {
        gboolean counts = dloss != NULL && r->labels[t] != attr->ignore_index;
        real upstream = counts ? mean * dloss[each ? t : 0] : 0;
        LossScale scale = loss_scale(attr, upstream, lses[t], r->vocab);
        loss_grad(tile + t * c, c, r->labels[t] - first, lses[t], &scale, (real)attr->softcap);
    }
    op_count(run, (double)(r->n * c) * r->flops.grad + (double)r->n * (r->flops.grad_row + r->flops.scale_row),
             r->n * (2 + (each ? 1 : 0)), 0);
}

gboolean REAL_NAME(head_loss_backward)(const OpRun *run, GError **error)
{
    HeadLossRun r;
    if (!head_loss_run_init(&r, run, error)) {
        return FALSE;
    }
    int64_t chunk = r.attr->vocab_chunk, wide = r.n * r.h;
    real *dx = run->din[IN_X] != NULL ? run->din[IN_X]->data : NULL;
    real *dw = run->dparam[0] != NULL ? run->dparam[0]->data : NULL;
    g_autofree real *tile = head_loss_alloc(&r, run, r.n * chunk);
    op_count(run, r.attr->loss.reduction == LOSS_MEAN ? 2 : 0, r.attr->loss.reduction == LOSS_NONE ? 0 : 1, 0);
    if (r.n == 0 && dw != NULL) {
        memset(dw, 0, (size_t)(r.vocab * r.h) * sizeof *dw);
    }
    for (int64_t first = 0; first < r.vocab && r.n > 0; first += chunk) {
        int64_t c = MIN(chunk, r.vocab - first);
        head_loss_tile(&r, run, first, c, tile);
        head_loss_tile_grad(&r, run, first, c, tile);
        if (dx != NULL) { /* the first slice overwrites */
            const Matmul product = {.m = r.n, .n = r.h, .k = c, .beta = first > 0 ? 1 : 0};
            REAL_NAME(matmul_dense)(product, tile, r.weight + first * r.h, dx);
            op_count(run, 2.0 * (double)wide * (double)c, first > 0 ? wide : 0, wide);
        }
        if (dw != NULL) {
            const Matmul product = {.m = c, .n = r.h, .k = r.n, .trans_a = TRUE};
            REAL_NAME(matmul_dense)(product, tile, r.x, dw + first * r.h);
            op_count(run, 2.0 * (double)wide * (double)c, 0, c * r.h);
        }
    }
    return TRUE;
}

#if REAL_HAS_CLASS
static int64_t slice_columns(int64_t vocab_chunk, int64_t vocab)
{
    return vocab_chunk > 0 ? MIN(vocab_chunk, vocab) : vocab;
}

int head_loss_add(Graph *graph, const char *name, int x, int labels, int64_t vocab, int64_t vocab_chunk,
                  const CrossEntropyAttr *attr)
{
    HeadLossAttr full = {.loss = *attr, .vocab_chunk = slice_columns(vocab_chunk, vocab)};
    int weight =
        graph_add_param(graph, op_name(name, "weight").text, PARAM_HEAD, vocab, graph_tensor(graph, x)->width, 0);
    int loss = graph_add_tensor(graph, op_name(name, "loss").text,
                                attr->reduction == LOSS_NONE ? ROWS_TOKENS : ROWS_ONE, 1, op_wide_dtype(graph));
    Op *op = op_add(graph, OP_head_loss, name, &full, sizeof full);
    op_input(op, x);
    op_input(op, labels);
    op_param(graph, op, weight);
    op_output(graph, op, loss);
    return loss;
}

void head_loss_set_chunk(Graph *graph, int op_idx, int64_t vocab_chunk)
{
    Op *op = graph_op(graph, op_idx);
    g_assert(op->kind == OP_head_loss);
    HeadLossAttr *attr = g_memdup2(op->attr, sizeof *attr);
    int64_t vocab = graph_param(graph, op->params[0])->dims[0];
    attr->vocab_chunk = slice_columns(vocab_chunk, vocab);
    g_ptr_array_add(graph->attrs, attr);
    op->attr = attr;
}

/* Sizes of one call. */
typedef struct HeadLossSize {
    const HeadLossAttr *attr;
    int64_t n, h, vocab;
    int64_t slices, chunk, rest; /* slices in all; columns of a slice and of the last */
    int64_t b, wide, idx;
    Dtype dtype;
    gboolean dx, dw;
} HeadLossSize;

static HeadLossSize head_loss_size(const OpView *view)
{
    const GraphTensor *x = op_in(view, IN_X);
    const HeadLossAttr *attr = view->op->attr;
    HeadLossSize s = {
        .attr = attr,
        .n = op_rows(view, ROWS_TOKENS),
        .h = x->width,
        .vocab = op_weight(view, 0)->dims[0],
        .chunk = attr->vocab_chunk,
        .b = dtype_bytes(x->dtype, 1),
        .wide = dtype_bytes(op_wide_dtype(view->graph), 1),
        .idx = dtype_bytes(DTYPE_INT64, 1),
        .dtype = x->dtype,
        .dx = op_needs_input_grad(view, IN_X),
        .dw = op_trains_param(view, 0),
    };
    s.slices = (s.vocab + s.chunk - 1) / s.chunk;
    s.rest = s.vocab - (s.slices - 1) * s.chunk;
    return s;
}

/* Hidden rows, labels and a log-sum-exp per token, fused and eager alike (kernels.md 10.3). */
static void head_loss_saved(const OpView *view, OpSaved *ret_saved)
{
    *ret_saved = (OpSaved){0};
    if (op_has_backward(view)) {
        ret_saved->inputs = 1u << IN_X | 1u << IN_LABELS;
        op_saved_aux(ret_saved, ROWS_TOKENS, 1, op_wide_dtype(view->graph));
    }
}

/* The fused kernel: its matrix size, for the law. */
static void loss_kernel(OpCost *cost, const HeadLossSize *s, double flops, int64_t read_bytes, int64_t write_bytes)
{
    Work *work = op_cost_stream(cost, WORK_LOSS, flops, read_bytes, write_bytes);
    work->dtype = s->dtype;
    work->m = s->n;
    work->n = s->vocab;
    work->k = s->h;
}

/* One elementwise or row kernel per slice: all but the last slice in one entry, the last in another. */
static void slice_kernels(OpCost *cost, const HeadLossSize *s, WorkLaw law, double flops_per_logit, int64_t read_bytes,
                          int64_t write_bytes)
{
    for (int last = 0; last < 2; last++) {
        int64_t launches = last ? 1 : s->slices - 1, elems = s->n * (last ? s->rest : s->chunk);
        if (launches > 0) {
            Work *work =
                op_cost_stream(cost, law, flops_per_logit * (double)elems, elems * read_bytes, elems * write_bytes);
            work->n_launches = (int)launches;
            work->m = s->n;
            work->n = last ? s->rest : s->chunk;
        }
    }
}

static void slice_gemms(OpCost *cost, const HeadLossSize *s, WorkLaw law, gboolean repeats)
{
    for (int last = 0; last < 2; last++) {
        int64_t launches = last ? 1 : s->slices - 1, c = last ? s->rest : s->chunk;
        if (launches > 0) {
            Work *work = law == WORK_GEMM_NT   ? op_cost_gemm(cost, law, s->dtype, s->n, c, s->h)
                         : law == WORK_GEMM_NN ? op_cost_gemm(cost, law, s->dtype, s->n, s->h, c)
                                               : op_cost_gemm(cost, law, s->dtype, c, s->h, s->n);
            work->n_launches = (int)launches;
            work->repeated_flops = repeats ? work->flops : 0;
        }
    }
}

/*
 * Eager: per slice the product, its upcast copy, a log-sum-exp (maximum, exponentials, sum) and its merge with what
 * came before. Most memory: the slice in both types and its exponentials.
 */
static void eager_forward_cost(const HeadLossSize *s, OpCost *cost)
{
    slice_gemms(cost, s, WORK_GEMM_NT, FALSE);
    slice_kernels(cost, s, WORK_COPY, 0, s->b, s->wide);
    for (int i = 0; s->attr->loss.softcap > 0 && i < 3; i++) {
        slice_kernels(cost, s, WORK_ELEMENTWISE, 1, s->wide, s->wide);
    }
    slice_kernels(cost, s, WORK_REDUCE, 1, s->wide, 0);
    slice_kernels(cost, s, WORK_ELEMENTWISE, 2, s->wide, s->wide);
    slice_kernels(cost, s, WORK_REDUCE, 1, s->wide, 0);
    Work *merge = op_cost_stream(cost, WORK_ELEMENTWISE, 6 * (double)s->n, 3 * s->n * s->wide, 2 * s->n * s->wide);
    merge->n_launches = (int)s->slices;
    op_cost_stream(cost, WORK_REDUCE, (double)s->n, 2 * s->n * s->wide, s->wide);
    cost->workspace_bytes = s->n * s->chunk * 2 * s->wide + 3 * s->n * s->wide;
}

static void head_loss_forward_cost(const OpView *view, OpCost *ret_cost)
{
    HeadLossSize s = head_loss_size(view);
    const LossFlops f = loss_flops(&s.attr->loss);
    gboolean each = s.attr->loss.reduction == LOSS_NONE;
    double rows = (double)s.n, logits = rows * (double)s.vocab;
    int64_t slices = s.n > 0 ? s.slices : 0;
    *ret_cost = (OpCost){0};
    if (view->op->eager) {
        eager_forward_cost(&s, ret_cost);
        return;
    }
    double flops = logits * (2 * (double)s.h + f.cap + f.scan) + rows * ((double)slices * f.scan_row + f.value_row) +
                   (s.attr->loss.reduction == LOSS_MEAN ? 1 : 0);
    loss_kernel(ret_cost, &s, flops, slices * s.n * s.h * s.b + (slices > 0 ? s.vocab * s.h * s.b : 0) + s.n * s.idx,
                (op_has_backward(view) ? s.n * s.wide : 0) + (each ? s.n : 1) * s.wide);
    ret_cost->pointwise_flops = flops - logits * 2 * (double)s.h;
    ret_cost->workspace_bytes = s.n * (s.chunk + 4) * s.wide; /* one tile; maximum, sum and two more per token */
}

/* Eager: the slice once more, its probabilities, their gradient in half precision, two products and two sums. */
static void eager_backward_cost(const HeadLossSize *s, OpCost *cost)
{
    slice_gemms(cost, s, WORK_GEMM_NT, TRUE);
    slice_kernels(cost, s, WORK_COPY, 0, s->b, s->wide);
    for (int i = 0; s->attr->loss.softcap > 0 && i < 3; i++) {
        slice_kernels(cost, s, WORK_ELEMENTWISE, 1, s->wide, s->wide);
    }
    slice_kernels(cost, s, WORK_ELEMENTWISE, 2, s->wide, s->wide); /* exp(z - lse) */
    slice_kernels(cost, s, WORK_ELEMENTWISE, 1, s->wide, s->wide); /* times the upstream gradient */
    Work *scatter = op_cost_stream(cost, WORK_REDUCE, (double)s->n, s->n * s->idx, s->n * s->wide);
    scatter->n_launches = (int)s->slices;
    for (int i = 0; s->attr->loss.softcap > 0 && i < 2; i++) {
        slice_kernels(cost, s, WORK_ELEMENTWISE, 2, 2 * s->wide, s->wide);
    }
    slice_kernels(cost, s, WORK_COPY, 0, s->wide, s->b);
    if (s->dx) {
        slice_gemms(cost, s, WORK_GEMM_NN, FALSE);
        if (s->slices > 1) {
            Work *sum = op_cost_stream(cost, WORK_ELEMENTWISE, (double)(s->n * s->h), 2 * s->n * s->h * s->b,
                                       s->n * s->h * s->b);
            sum->n_launches = (int)(s->slices - 1);
        }
    }
    if (s->dw) {
        slice_gemms(cost, s, WORK_GEMM_TN, FALSE);
    }
    cost->workspace_bytes = s->n * s->chunk * 2 * s->wide + (s->dx && s->slices > 1 ? s->n * s->h * s->b : 0);
}

static void head_loss_backward_cost(const OpView *view, OpCost *ret_cost)
{
    HeadLossSize s = head_loss_size(view);
    const LossFlops f = loss_flops(&s.attr->loss);
    gboolean each = s.attr->loss.reduction == LOSS_NONE, mean = s.attr->loss.reduction == LOSS_MEAN;
    double rows = (double)s.n, logits = rows * (double)s.vocab, products = 1 + (s.dx ? 1 : 0) + (s.dw ? 1 : 0);
    int64_t slices = s.n > 0 ? s.slices : 0, wide_rows = s.n * s.h * s.b, weight = slices > 0 ? s.vocab * s.h * s.b : 0;
    *ret_cost = (OpCost){0};
    if (!s.dx && !s.dw) {
        return;
    }
    if (view->op->eager) {
        eager_backward_cost(&s, ret_cost);
        return;
    }
    double flops = logits * (2 * products * (double)s.h + f.cap + f.grad) +
                   rows * (double)slices * (f.grad_row + f.scale_row) + (mean ? 2 : 0);
    int64_t rows_read = slices * s.n * (s.idx + s.wide + (each ? s.wide : 0)) + (each ? 0 : s.wide);
    int64_t dx_read = s.dx && slices > 0 ? (slices - 1) * wide_rows : 0;
    loss_kernel(ret_cost, &s, flops, slices * wide_rows + weight + rows_read + dx_read,
                (s.dx ? slices * wide_rows : 0) + (s.dw ? weight : 0));
    ret_cost->works[0].repeated_flops = 2 * logits * (double)s.h;
    ret_cost->pointwise_flops = flops - logits * 2 * products * (double)s.h;
    ret_cost->workspace_bytes = s.n * s.chunk * s.wide;
}

static const struct {
    int64_t n, h, vocab, chunk;
    CrossEntropyAttr attr;
} samples[] = {
    {5, 3, 7, 0, {CROSS_ENTROPY_IGNORE, 0, 0, 0, LOSS_MEAN}},
    {6, 4, 11, 4, {CROSS_ENTROPY_IGNORE, 0.1, 0.01, 5, LOSS_SUM}},
    {3, 2, 6, 3, {CROSS_ENTROPY_IGNORE, 0.2, 0, 0, LOSS_NONE}},
    {4, 3, 1, 5, {CROSS_ENTROPY_IGNORE, 0, 0.1, 0, LOSS_MEAN}},
    {1, 2, 9, 1, {2, 0, 0, 3, LOSS_MEAN}}, /* its only label is the ignored one */
};

static gboolean head_loss_sample(int idx, Graph *graph, RowCounts *rows)
{
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    rows->rows[ROWS_TOKENS] = samples[idx].n;
    rows->seq_len = samples[idx].n;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, samples[idx].h, graph->compute, TRUE);
    int labels = graph_add_input(graph, "labels", ROWS_TOKENS, 1, DTYPE_INT64, FALSE);
    graph_add_output(
        graph, head_loss_add(graph, "lm_head", x, labels, samples[idx].vocab, samples[idx].chunk, &samples[idx].attr));
    return TRUE;
}

/* Labels all over the vocabulary, every third token ignored. */
static void head_loss_sample_fill(int idx, const OpView *view, Tensor *const *in, Tensor *const *param)
{
    const HeadLossAttr *attr = view->op->attr;
    (void)param;
    for (int64_t t = 0; t < samples[idx].n; t++) {
        tensor_set(in[IN_LABELS], t, (double)(t % 3 == 2 ? attr->loss.ignore_index : (2 + 5 * t) % samples[idx].vocab));
    }
}

extern const OpClass op_head_loss;
const OpClass op_head_loss = {
    .id = "head_loss",
    .title = "fused head and cross entropy",
    .is_loss = TRUE,
    .no_grad_inputs = 1u << IN_LABELS,
    .saved = head_loss_saved,
    .forward_cost = head_loss_forward_cost,
    .backward_cost = head_loss_backward_cost,
    .forward = REAL_KERNELS(head_loss_forward),
    .backward = REAL_KERNELS(head_loss_backward),
    .sample = head_loss_sample,
    .sample_fill = head_loss_sample_fill,
};
#endif
