#include "models/ops/mamba2.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"
#include "models/sequences.h"

#if REAL_HAS_CLASS
int64_t mamba2_in_width(const Mamba2Attr *attr)
{
    return 2 * attr->heads * attr->head_dim + 2 * attr->groups * attr->state + attr->heads;
}

int mamba2_add(Graph *graph, const char *prefix, int zxbcdt, const Mamba2Attr *attr)
{
    static const char *const suffixes[] = {"conv1d.weight", "conv1d.bias", "A_log", "D", "dt_bias", "norm.weight"};
    int64_t width = attr->heads * attr->head_dim;
    int64_t channels = width + 2 * attr->groups * attr->state;
    const int64_t sizes[] = {channels, channels, attr->heads, attr->heads, attr->heads, width};
    char name[GRAPH_NAME_MAX];
    int params[G_N_ELEMENTS(suffixes)];
    g_assert(graph_tensor(graph, zxbcdt)->width == mamba2_in_width(attr));
    for (guint i = 0; i < G_N_ELEMENTS(suffixes); i++) {
        gboolean taps = i == 0;
        g_snprintf(name, sizeof name, "%s.%s", prefix, suffixes[i]);
        params[i] = graph_add_param(graph, name, PARAM_VECTOR, sizes[i], taps ? 1 : 0, taps ? attr->kernel : 0);
        graph_param(graph, params[i])->always_fp32 = i >= 2 && i <= 4;
    }
    g_snprintf(name, sizeof name, "%s.scan", prefix);
    int y = graph_add_tensor(graph, name, ROWS_TOKENS, width, graph->compute);
    Op *op = op_add(graph, OP_mamba2, name, attr, sizeof *attr);
    op_input(op, zxbcdt);
    for (guint i = 0; i < G_N_ELEMENTS(suffixes); i++) {
        op_param(graph, op, params[i]);
    }
    op_output(graph, op, y);
    return y;
}

enum { MAMBA2_CHUNK = 256 }; /* tokens per chunk, the default of the reference implementation */

/* Sizes of one run. pairs: causal pairs inside chunks, over all sequences. */
typedef struct Mamba2Size {
    int64_t rows, width, channels, bc_width, chunk, n_chunks, pairs, n_sequences;
} Mamba2Size;

static Mamba2Size mamba2_size(const OpView *view)
{
    const Mamba2Attr *attr = view->op->attr;
    Mamba2Size size = {
        .rows = op_rows(view, ROWS_TOKENS),
        .width = attr->heads * attr->head_dim,
        .bc_width = 2 * attr->groups * attr->state,
        .chunk = attr->chunk > 0 ? attr->chunk : MAMBA2_CHUNK,
        .n_sequences = sequences_count(view->rows, ROWS_TOKENS),
    };
    size.channels = size.width + size.bc_width;
    for (int64_t i = 0; i < size.n_sequences; i++) {
        int64_t start = sequences_start(view->rows, ROWS_TOKENS, i);
        int64_t length = sequences_start(view->rows, ROWS_TOKENS, i + 1) - start;
        int64_t rest = length % size.chunk;
        size.n_chunks += length / size.chunk + (rest > 0 ? 1 : 0);
        size.pairs += length / size.chunk * (size.chunk * (size.chunk + 1) / 2) + rest * (rest + 1) / 2;
    }
    return size;
}

/*
 * State-space duality form, causal pairs only: C B^T per group, its product with x per head, chunk states from B and x,
 * their read-out by C; a decay and a carry per state element and chunk; three operations of dt, decay and D per
 * element.
 */
static double mamba2_scan_flops(const OpView *view, const Mamba2Size *size)
{
    const Mamba2Attr *attr = view->op->attr;
    double state = (double)attr->state, heads = (double)attr->heads, head_dim = (double)attr->head_dim;
    double intra = 2.0 * (double)size->pairs * ((double)attr->groups * state + heads * head_dim);
    double inter = 4.0 * (double)size->rows * heads * head_dim * state;
    double carry = 2.0 * (double)size->n_chunks * heads * head_dim * state;
    return intra + inter + carry + 3.0 * (double)(size->rows * size->width);
}

/*
 * Kept by the fused implementation: its input by reference, dt in fp32, chunk states, the scan's result (the norm's
 * input) and one reciprocal norm per group. The convolution is computed again in backward.
 */
static void mamba2_saved(const OpView *view, OpSaved *ret_saved)
{
    const Mamba2Attr *attr = view->op->attr;
    Mamba2Size size = mamba2_size(view);
    Dtype dtype = op_in(view, 0)->dtype, wide = op_wide_dtype(view->graph);
    *ret_saved = (OpSaved){.inputs = 1};
    op_saved_aux(ret_saved, ROWS_TOKENS, attr->heads, wide);
    op_saved_aux(ret_saved, ROWS_TOKENS, size.width, dtype);
    op_saved_aux(ret_saved, ROWS_TOKENS, attr->groups, wide);
    op_saved_aux(ret_saved, ROWS_ONE, size.n_chunks * size.width * attr->state, dtype);
    if (view->op->eager) { /* the convolution's padded input and result, the normed product's factors */
        op_saved_aux(ret_saved, ROWS_TOKENS, 2 * size.channels, dtype);
        op_saved_aux(ret_saved, ROWS_TOKENS, 2 * size.width, dtype);
    }
}

/* Convolution with bias and SiLU: one kernel, or the chain of short_conv.c. */
static void mamba2_conv(const OpView *view, const Mamba2Size *size, OpCost *cost, gboolean backward)
{
    const Mamba2Attr *attr = view->op->attr;
    Dtype dtype = op_in(view, 0)->dtype;
    int64_t n = size->rows * size->channels, bytes = dtype_bytes(dtype, n);
    int64_t weights = dtype_bytes(dtype, size->channels * (attr->kernel + 1));
    double taps = (2.0 * (double)attr->kernel + 1) * (double)n, silu = 2.0 * (double)n;
    if (!view->op->eager) {
        double flops = backward ? 3 * taps + 6.0 * (double)n : taps + silu;
        op_cost_stream(cost, WORK_ELEMENTWISE, flops, (backward ? 2 : 1) * bytes + weights,
                       bytes + (backward ? weights : 0));
        return;
    }
    op_cost_stream(cost, WORK_TRANSPOSE, 0, bytes, bytes);
    op_cost_stream(cost, WORK_CONV1D, taps, bytes + weights, bytes);
    if (backward) {
        op_cost_stream(cost, WORK_CONV1D, taps, 2 * bytes, weights);
    }
    op_cost_stream(cost, WORK_ELEMENTWISE, silu, (backward ? 2 : 1) * bytes, bytes);
    op_cost_stream(cost, WORK_TRANSPOSE, 0, bytes, bytes);
}

/* Gated RMSNorm over groups: silu(z) times y, then the norm. */
static void mamba2_norm(const OpView *view, const Mamba2Size *size, OpCost *cost, gboolean backward)
{
    const Mamba2Attr *attr = view->op->attr;
    int64_t n = size->rows * size->width, bytes = dtype_bytes(op_in(view, 0)->dtype, n);
    int n_launches = view->op->eager ? 3 : 1; /* SiLU, product, norm */
    WorkLaw law = backward ? WORK_NORM_BACKWARD : WORK_NORM_FORWARD;
    for (int i = 1; i < n_launches; i++) {
        op_cost_stream(cost, WORK_ELEMENTWISE, 2.0 * (double)n, (backward ? 2 : 1) * bytes, bytes);
    }
    Work *work = op_cost_stream(cost, law, (backward ? 15.0 : 7.0) * (double)n, (backward ? 3 : 2) * bytes,
                                (backward ? 2 : 1) * bytes);
    work->m = size->rows * attr->groups;
    work->n = size->width / attr->groups;
}

static void mamba2_scan(const OpView *view, const Mamba2Size *size, OpCost *cost, gboolean backward)
{
    const Mamba2Attr *attr = view->op->attr;
    Dtype dtype = op_in(view, 0)->dtype;
    int64_t in = dtype_bytes(dtype, size->rows * size->channels) + dtype_bytes(dtype, size->rows * attr->heads);
    int64_t out = dtype_bytes(dtype, size->rows * size->width);
    int64_t states = dtype_bytes(dtype, size->n_chunks * size->width * attr->state);
    double flops = mamba2_scan_flops(view, size);
    Work *work = backward ? op_cost_stream(cost, WORK_SCAN_BACKWARD, 2 * flops, in + out + states, in)
                          : op_cost_stream(cost, WORK_SCAN_FORWARD, flops, in, out + states);
    work->m = size->rows;
    work->n = attr->heads;
    work->k = attr->state;
    work->n_groups = size->n_sequences;
}

static void mamba2_forward_cost(const OpView *view, OpCost *ret_cost)
{
    Mamba2Size size = mamba2_size(view);
    *ret_cost = (OpCost){0};
    mamba2_conv(view, &size, ret_cost, FALSE);
    mamba2_scan(view, &size, ret_cost, FALSE);
    mamba2_norm(view, &size, ret_cost, FALSE);
    ret_cost->workspace_bytes = dtype_bytes(op_in(view, 0)->dtype, size.rows * size.channels);
}

static void mamba2_backward_cost(const OpView *view, OpCost *ret_cost)
{
    Mamba2Size size = mamba2_size(view);
    *ret_cost = (OpCost){0};
    if (!op_has_backward(view)) {
        return;
    }
    mamba2_norm(view, &size, ret_cost, TRUE);
    mamba2_scan(view, &size, ret_cost, TRUE);
    mamba2_conv(view, &size, ret_cost, TRUE);
    ret_cost->workspace_bytes = 2 * dtype_bytes(op_in(view, 0)->dtype, size.rows * size.channels);
}

extern const OpClass op_mamba2;
const OpClass op_mamba2 = {
    .id = "mamba2",
    .title = "Mamba-2",
    .saved = mamba2_saved,
    .forward_cost = mamba2_forward_cost,
    .backward_cost = mamba2_backward_cost,
};
#endif
