#include "models/ops/short-conv.h"

#include <string.h>

#include "models/op.h"
#include "models/real-math.h"
#include "models/real.h"
#include "models/sequences.h"

REAL_DECLARE(short_conv_forward);
REAL_DECLARE(short_conv_backward);

/* One sequence: its rows of x (and of others), the rows before it, and sizes. C channels, K taps. */
typedef struct ConvSpan {
    const real *x;
    const real *state; /* K - 1 rows, oldest first; NULL = zeros */
    const real *u;     /* results of the convolution, where they are kept */
    int64_t n_rows, channels, kernel;
} ConvSpan;

/* What a chain keeps: the rows of its padded copy, the padding before them, and what the activation reads. */
enum { AUX_ROWS, AUX_PADDING };

static Tensor *conv_kept_results(const OpRun *run)
{
    const ShortConvAttr *attr = run->view->op->attr;
    return attr->silu ? run->aux[attr->kernel > 1 ? AUX_PADDING + 1 : AUX_PADDING] : NULL;
}

/* Row t of the sequence, t >= -(K - 1); NULL stands for zeros. */
static const real *conv_row(const ConvSpan *span, int64_t t)
{
    if (t >= 0) {
        return span->x + t * span->channels;
    }
    return span->state != NULL ? span->state + (t + span->kernel - 1) * span->channels : NULL;
}

/* The convolution at row t, before the activation: taps[j] is the row of tap j, [K, C]. */
static void conv_at(const ConvSpan *span, const real *taps, int64_t t, real *u)
{
    memset(u, 0, (size_t)span->channels * sizeof *u);
    for (int64_t j = 0; j < span->kernel; j++) {
        const real *x = conv_row(span, t - (span->kernel - 1) + j), *w = taps + j * span->channels;
        for (int64_t c = 0; x != NULL && c < span->channels; c++) {
            u[c] += w[c] * x[c];
        }
    }
}

/* [n, m] to [m, n]; free with g_free. */
static real *conv_transposed(const real *a, int64_t n, int64_t m)
{
    real *t = g_new(real, (gsize)(n * m));
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < m; j++) {
            t[j * n + i] = a[i * m + j];
        }
    }
    return t;
}

static ConvSpan conv_span(const OpRun *run, int64_t sequence, int64_t *ret_start)
{
    const ShortConvAttr *attr = run->view->op->attr;
    RowSpace space = op_in(run->view, 0)->rows;
    int64_t start = sequences_start(run->view->rows, space, sequence);
    gboolean kept = run->in[0] == NULL && run->aux[AUX_ROWS] != NULL;
    const real *x = real_data_const(kept ? run->aux[AUX_ROWS] : run->in[0]),
               *u = kept ? real_data_const(conv_kept_results(run)) : NULL;
    const real *state = real_data_const(kept ? (attr->kernel > 1 ? run->aux[AUX_PADDING] : NULL) : run->in[1]);
    *ret_start = start;
    return (ConvSpan){
        .x = x != NULL ? x + start * attr->channels : NULL,
        .state = state != NULL ? state + sequence * (attr->kernel - 1) * attr->channels : NULL,
        .u = u != NULL ? u + start * attr->channels : NULL,
        .n_rows = sequences_start(run->view->rows, space, sequence + 1) - start,
        .channels = attr->channels,
        .kernel = attr->kernel,
    };
}

/* The copy of a chain's padded input. */
static void conv_keep(const OpRun *run)
{
    const ShortConvAttr *attr = run->view->op->attr;
    if (run->aux[AUX_ROWS] == NULL) {
        return;
    }
    memcpy(run->aux[AUX_ROWS]->data, run->in[0]->data, (size_t)tensor_numel(run->in[0]) * sizeof(real));
    if (attr->kernel > 1) {
        size_t bytes = (size_t)tensor_numel(run->aux[AUX_PADDING]) * sizeof(real);
        memset(run->aux[AUX_PADDING]->data, 0, bytes);
        if (run->in[1] != NULL) {
            memcpy(run->aux[AUX_PADDING]->data, run->in[1]->data, bytes);
        }
    }
}

gboolean REAL_NAME(short_conv_forward)(const OpRun *run, GError **error)
{
    (void)error;
    const ShortConvAttr *attr = run->view->op->attr;
    g_autofree real *taps = conv_transposed(real_data_const(run->param[0]), attr->channels, attr->kernel);
    int64_t n_sequences = sequences_count(run->view->rows, op_in(run->view, 0)->rows), n = tensor_numel(run->out[0]);
    real *kept_results = real_data(conv_kept_results(run));
    conv_keep(run);
    for (int64_t s = 0; s < n_sequences; s++) {
        int64_t start;
        ConvSpan span = conv_span(run, s, &start);
        for (int64_t t = 0; t < span.n_rows; t++) {
            real *y = real_data(run->out[0]) + (start + t) * span.channels;
            conv_at(&span, taps, t, y);
            if (kept_results != NULL) {
                memcpy(kept_results + (start + t) * span.channels, y, (size_t)span.channels * sizeof *y);
            }
            for (int64_t c = 0; attr->silu && c < span.channels; c++) {
                y[c] *= real_sigmoid(y[c]);
            }
        }
    }
    double per_elem = 2.0 * (double)attr->kernel + (attr->silu ? 2 : 0);
    int64_t n_state = run->in[1] != NULL ? tensor_numel(run->in[1]) : 0;
    op_count(run, per_elem * (double)n, n + attr->channels * attr->kernel + n_state, n);
    return TRUE;
}

/* Gradient at the result of the convolution, for every row of a sequence: through SiLU, whose input is made again where
 * it is not kept. */
static void conv_upstream(const ConvSpan *span, const real *taps, gboolean silu, real *du)
{
    g_autofree real *u = g_new(real, (gsize)span->channels);
    for (int64_t t = 0; silu && t < span->n_rows; t++) {
        real *row = du + t * span->channels;
        if (span->u != NULL) {
            memcpy(u, span->u + t * span->channels, (size_t)span->channels * sizeof *u);
        } else {
            conv_at(span, taps, t, u);
        }
        for (int64_t c = 0; c < span->channels; c++) {
            real s = real_sigmoid(u[c]);
            row[c] *= s * (1 + u[c] * (1 - s));
        }
    }
}

/* Adds row t's share of the tap gradients, and spreads du over the rows that the taps met. */
static void conv_scatter(const ConvSpan *span, const real *taps, const real *du, real *dx, real *dstate, real *dtaps)
{
    for (int64_t t = 0; t < span->n_rows; t++) {
        for (int64_t j = 0; j < span->kernel; j++) {
            int64_t source = t - (span->kernel - 1) + j;
            const real *x = dtaps != NULL ? conv_row(span, source) : NULL;
            real *to = source >= 0 ? dx : dstate;
            real *dsource =
                to != NULL ? to + (source >= 0 ? source : source + span->kernel - 1) * span->channels : NULL;
            for (int64_t c = 0; x != NULL && c < span->channels; c++) {
                dtaps[j * span->channels + c] += du[t * span->channels + c] * x[c];
            }
            for (int64_t c = 0; dsource != NULL && c < span->channels; c++) {
                dsource[c] += du[t * span->channels + c] * taps[j * span->channels + c];
            }
        }
    }
}

static void conv_count_backward(const OpRun *run)
{
    const ShortConvAttr *attr = run->view->op->attr;
    gboolean need_x = run->din[0] != NULL, need_w = run->dparam[0] != NULL;
    int64_t n = op_rows(run->view, op_in(run->view, 0)->rows) * attr->channels,
            n_weights = attr->channels * attr->kernel;
    int64_t n_state = run->in[1] != NULL ? tensor_numel(run->in[1]) : 0;
    int64_t n_dstate = run->din[1] != NULL ? tensor_numel(run->din[1]) : 0;
    double taps = 2.0 * (double)attr->kernel;
    double per_elem = (attr->silu ? taps + 6 : 0) + (need_x ? taps : 0) + (need_w ? taps : 0);
    op_count(run, per_elem * (double)n,
             n + (attr->silu || need_w ? n + n_state : 0) + (attr->silu || need_x ? n_weights : 0),
             (need_x ? n : 0) + (need_w ? n_weights : 0) + n_dstate);
}

gboolean REAL_NAME(short_conv_backward)(const OpRun *run, GError **error)
{
    (void)error;
    const ShortConvAttr *attr = run->view->op->attr;
    int64_t n_weights = attr->channels * attr->kernel, n_state = (attr->kernel - 1) * attr->channels;
    g_autofree real *taps = conv_transposed(real_data_const(run->param[0]), attr->channels, attr->kernel);
    g_autofree real *dtaps = run->dparam[0] != NULL ? g_new0(real, (gsize)n_weights) : NULL;
    const Tensor *written[] = {run->din[0], run->din[1]};
    for (guint i = 0; i < G_N_ELEMENTS(written); i++) {
        if (written[i] != NULL) {
            memset(written[i]->data, 0, (size_t)tensor_numel(written[i]) * sizeof(real));
        }
    }
    int64_t n_sequences = sequences_count(run->view->rows, op_in(run->view, 0)->rows);
    for (int64_t s = 0; run->dout[0] != NULL && s < n_sequences; s++) {
        int64_t start;
        ConvSpan span = conv_span(run, s, &start);
        int64_t offset = start * span.channels;
        g_autofree real *du =
            g_memdup2(real_data_const(run->dout[0]) + offset, (gsize)(span.n_rows * span.channels) * sizeof *du);
        real *dx = real_data(run->din[0]), *dstate = real_data(run->din[1]);
        conv_upstream(&span, taps, attr->silu, du);
        conv_scatter(&span, taps, du, dx != NULL ? dx + offset : NULL, dstate != NULL ? dstate + s * n_state : NULL,
                     dtaps);
    }
    if (dtaps != NULL) {
        g_autofree real *dw = conv_transposed(dtaps, attr->kernel, attr->channels);
        memcpy(run->dparam[0]->data, dw, (size_t)n_weights * sizeof *dw);
    }
    conv_count_backward(run);
    return TRUE;
}

#if REAL_HAS_CLASS
int short_conv_add(Graph *graph, const char *name, int x, int64_t channels, int64_t kernel, gboolean silu)
{
    ShortConvAttr attr = {channels, kernel, silu};
    char param_name[GRAPH_NAME_MAX];
    g_snprintf(param_name, sizeof param_name, "%s.weight", name);
    int weight = graph_add_param(graph, param_name, PARAM_VECTOR, channels, 1, kernel);
    graph_param(graph, weight)->always_fp32 = TRUE;
    g_assert(graph_tensor(graph, x)->width == channels);
    RowSpace rows = graph_tensor(graph, x)->rows;
    int y = graph_add_tensor(graph, name, rows, channels, graph->compute);
    Op *op = op_add(graph, OP_short_conv, name, &attr, sizeof attr);
    op_input(op, x);
    op_param(graph, op, weight);
    op_output(graph, op, y);
    return y;
}

/* Shape of one run: rows, elements of x, elements with the left padding of every sequence. */
typedef struct ShortConvSize {
    int64_t n_rows, n, n_padded, n_weights;
} ShortConvSize;

static ShortConvSize short_conv_size(const OpView *view)
{
    const ShortConvAttr *attr = view->op->attr;
    ShortConvSize size = {.n_rows = op_rows(view, op_in(view, 0)->rows), .n_weights = attr->channels * attr->kernel};
    size.n = size.n_rows * attr->channels;
    size.n_padded = size.n + op_rows(view, ROWS_SEQUENCES) * (attr->kernel - 1) * attr->channels;
    return size;
}

/*
 * Eager, as PyTorch runs silu(conv1d(pad(x.transpose))).transpose: the padded copy and the result of the convolution
 * are kept, x is not.
 */
static void short_conv_saved(const OpView *view, OpSaved *ret_saved)
{
    const ShortConvAttr *attr = view->op->attr;
    const GraphTensor *x = op_in(view, 0);
    if (!view->op->eager) {
        *ret_saved = (OpSaved){.inputs = view->op->n_inputs > 1 ? 3 : 1};
        return;
    }
    *ret_saved = (OpSaved){0};
    op_saved_aux(ret_saved, x->rows, attr->channels, x->dtype);
    if (attr->kernel > 1) {
        op_saved_aux(ret_saved, ROWS_SEQUENCES, (attr->kernel - 1) * attr->channels, x->dtype);
    }
    if (attr->silu) {
        op_saved_aux(ret_saved, x->rows, attr->channels, x->dtype);
    }
}

/* kernels.md 1.3: a multiply-add per tap (zero padding included), sigmoid and product of SiLU. */
static void short_conv_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const ShortConvAttr *attr = view->op->attr;
    ShortConvSize size = short_conv_size(view);
    Dtype dtype = op_in(view, 0)->dtype;
    int64_t bytes = dtype_bytes(dtype, size.n), padded = dtype_bytes(dtype, size.n_padded);
    int64_t weights = dtype_bytes(dtype, size.n_weights), state = view->op->n_inputs > 1 ? op_in_bytes(view, 1) : 0;
    double taps = 2.0 * (double)attr->kernel * (double)size.n, silu = attr->silu ? 2.0 * (double)size.n : 0;
    *ret_cost = (OpCost){0};
    if (!view->op->eager) {
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, taps + silu, bytes + weights + state, bytes);
        return;
    }
    op_cost_stream(ret_cost, WORK_COPY, 0, 0, padded);
    op_cost_stream(ret_cost, WORK_TRANSPOSE, 0, bytes, bytes);
    op_cost_stream(ret_cost, WORK_CONV1D, taps, padded + weights, bytes);
    if (attr->silu) {
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, silu, bytes, bytes);
    }
    op_cost_stream(ret_cost, WORK_TRANSPOSE, 0, bytes, bytes);
    ret_cost->workspace_bytes = bytes; /* the result before it is transposed back */
}

static void short_conv_backward_eager(const OpView *view, const ShortConvSize *size, OpCost *cost)
{
    const ShortConvAttr *attr = view->op->attr;
    Dtype dtype = op_in(view, 0)->dtype;
    int64_t bytes = dtype_bytes(dtype, size->n), padded = dtype_bytes(dtype, size->n_padded);
    int64_t weights = dtype_bytes(dtype, size->n_weights);
    double taps = 2.0 * (double)attr->kernel * (double)size->n;
    if (attr->silu) {
        op_cost_stream(cost, WORK_TRANSPOSE, 6.0 * (double)size->n, 2 * bytes, bytes);
    }
    op_cost_stream(cost, WORK_TRANSPOSE, 0, bytes, bytes);
    if (op_trains_param(view, 0)) {
        op_cost_stream(cost, WORK_CONV1D, taps, bytes + padded, weights);
    }
    if (op_needs_input_grad(view, 0)) {
        op_cost_stream(cost, WORK_CONV1D, taps, bytes + weights, padded);
        op_cost_stream(cost, WORK_STRIDED, 0, bytes, bytes);
    }
}

/* Fused: u is recomputed from x, then du, dx and dw in one pass. */
static void short_conv_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const ShortConvAttr *attr = view->op->attr;
    ShortConvSize size = short_conv_size(view);
    gboolean need_x = op_needs_input_grad(view, 0), need_w = op_trains_param(view, 0);
    *ret_cost = (OpCost){0};
    if (!need_x && !need_w) {
        return;
    }
    if (view->op->eager) {
        short_conv_backward_eager(view, &size, ret_cost);
        return;
    }
    Dtype dtype = op_in(view, 0)->dtype;
    int64_t bytes = dtype_bytes(dtype, size.n), weights = dtype_bytes(dtype, size.n_weights);
    double taps = 2.0 * (double)attr->kernel;
    double per_elem = (attr->silu ? taps + 6 : 0) + (need_x ? taps : 0) + (need_w ? taps : 0);
    int64_t state = view->op->n_inputs > 1 ? op_in_bytes(view, 1) : 0;
    int64_t read = bytes + (attr->silu || need_w ? bytes + state : 0) + (attr->silu || need_x ? weights : 0);
    int64_t written = (need_x ? bytes : 0) + (need_w ? weights : 0) + (op_needs_input_grad(view, 1) ? state : 0);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, per_elem * (double)size.n, read, written);
}

static gboolean short_conv_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        int64_t n_sequences, seq_len, channels, kernel;
        gboolean silu, state;
    } samples[] = {
        {1, 9, 5, 4, TRUE, FALSE},  {2, 3, 4, 4, TRUE, FALSE}, /* shorter than the kernel */
        {1, 6, 2, 3, FALSE, FALSE}, {2, 5, 3, 4, TRUE, TRUE},  {1, 1, 1, 1, TRUE, FALSE},
    };
    if (idx < 0 || idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    int64_t channels = samples[idx].channels, kernel = samples[idx].kernel;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, channels, graph->compute, TRUE);
    int y = short_conv_add(graph, "conv", x, channels, kernel, samples[idx].silu);
    if (samples[idx].state) {
        int state = graph_add_input(graph, "state", ROWS_SEQUENCES, (kernel - 1) * channels, graph->compute, TRUE);
        op_input(graph_op(graph, 0), state);
    }
    graph_add_output(graph, y);
    rows->rows[ROWS_TOKENS] = samples[idx].n_sequences * samples[idx].seq_len;
    rows->rows[ROWS_SEQUENCES] = samples[idx].n_sequences;
    rows->seq_len = samples[idx].seq_len;
    return TRUE;
}

extern const OpClass op_short_conv;
const OpClass op_short_conv = {
    .id = "short_conv",
    .title = "short convolution",
    .saved = short_conv_saved,
    .forward_cost = short_conv_forward_cost,
    .backward_cost = short_conv_backward_cost,
    .forward = REAL_KERNELS(short_conv_forward),
    .backward = REAL_KERNELS(short_conv_backward),
    .sample = short_conv_sample,
};
#endif
