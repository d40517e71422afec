#include "models/ops/short-conv.h"

#include "models/op.h"
#include "models/real.h"

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
        *ret_saved = (OpSaved){.inputs = 1};
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
    int64_t weights = dtype_bytes(dtype, size.n_weights);
    double taps = 2.0 * (double)attr->kernel * (double)size.n, silu = attr->silu ? 2.0 * (double)size.n : 0;
    *ret_cost = (OpCost){0};
    if (!view->op->eager) {
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, taps + silu, bytes + weights, bytes);
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
    int64_t read = bytes + (attr->silu || need_w ? bytes : 0) + (attr->silu || need_x ? weights : 0);
    int64_t written = (need_x ? bytes : 0) + (need_w ? weights : 0);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, per_elem * (double)size.n, read, written);
}

extern const OpClass op_short_conv;
const OpClass op_short_conv = {
    .id = "short_conv",
    .title = "short convolution",
    .saved = short_conv_saved,
    .forward_cost = short_conv_forward_cost,
    .backward_cost = short_conv_backward_cost,
};
#endif
