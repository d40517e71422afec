#include "models/ops/gated-norm.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int gated_norm_add(Graph *graph, const char *name, int x, int gate, int64_t dim, GatedNormKind kind, double eps)
{
    GatedNormAttr attr = {dim, kind, eps};
    char param_name[GRAPH_NAME_MAX];
    g_snprintf(param_name, sizeof param_name, "%s.weight", name);
    int weight = graph_add_param(graph, param_name, PARAM_VECTOR, dim, 0, 0);
    GraphTensor in = *graph_tensor(graph, x);
    g_assert(in.width % dim == 0 && graph_tensor(graph, gate)->width == in.width);
    int y = graph_add_tensor(graph, name, in.rows, in.width, graph->compute);
    Op *op = op_add(graph, OP_gated_norm, name, &attr, sizeof attr);
    op_input(op, x);
    op_input(op, gate);
    op_param(graph, op, weight);
    op_output(graph, op, y);
    return y;
}

/* Eager, as PyTorch runs rms_norm(x) * f(gate): the normed tensor and f(gate) are factors and stay. */
static void gated_norm_saved(const OpView *view, OpSaved *ret_saved)
{
    const GatedNormAttr *attr = view->op->attr;
    const GraphTensor *x = op_in(view, 0);
    gboolean keeps_gate = !view->op->eager || attr->kind == GATED_NORM_SILU;
    *ret_saved = (OpSaved){.inputs = keeps_gate ? 3 : 1};
    op_saved_aux(ret_saved, x->rows, x->width / attr->dim, op_wide_dtype(view->graph));
    if (view->op->eager) {
        op_saved_aux(ret_saved, x->rows, x->width, x->dtype);
        op_saved_aux(ret_saved, x->rows, x->width, x->dtype);
    }
}

/* A row-wise kernel over heads. */
static void gated_norm_work(const OpView *view, OpCost *cost, WorkLaw law, const Work *amounts)
{
    const GatedNormAttr *attr = view->op->attr;
    Work *work = op_cost_stream(cost, law, amounts->flops, amounts->read_bytes, amounts->write_bytes);
    work->m = graph_tensor_numel(op_in(view, 0), view->rows) / attr->dim;
    work->n = attr->dim;
}

/*
 * kernels.md 1.4. Per element: squares and their sum 2, scaling 1, weight 1, then sigmoid and product 2 or SiLU and
 * product 3; per head: mean, epsilon, root.
 */
static void gated_norm_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const GatedNormAttr *attr = view->op->attr;
    int64_t n = graph_tensor_numel(op_in(view, 0), view->rows), n_heads = n / attr->dim;
    int64_t bytes = op_in_bytes(view, 0), stats = dtype_bytes(op_wide_dtype(view->graph), n_heads);
    int64_t weight = dtype_bytes(op_in(view, 0)->dtype, attr->dim);
    double norm = 4.0 * (double)n + 3.0 * (double)n_heads, gate = attr->kind == GATED_NORM_SILU ? 3 : 2;
    *ret_cost = (OpCost){0};
    if (!view->op->eager) {
        Work fused = {.flops = norm + gate * (double)n, .read_bytes = 2 * bytes + weight, .write_bytes = bytes + stats};
        gated_norm_work(view, ret_cost, WORK_NORM_FORWARD, &fused);
        return;
    }
    Work normed = {.flops = norm, .read_bytes = bytes + weight, .write_bytes = bytes + stats};
    gated_norm_work(view, ret_cost, WORK_NORM_FORWARD, &normed);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, (gate - 1) * (double)n, bytes, bytes);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, (double)n, 2 * bytes, bytes);
}

static void gated_norm_backward_eager(const OpView *view, OpCost *cost)
{
    const GatedNormAttr *attr = view->op->attr;
    int64_t n = graph_tensor_numel(op_in(view, 0), view->rows), n_heads = n / attr->dim;
    int64_t bytes = op_in_bytes(view, 0), stats = dtype_bytes(op_wide_dtype(view->graph), n_heads);
    int64_t weight = dtype_bytes(op_in(view, 0)->dtype, attr->dim);
    gboolean need_norm = op_needs_input_grad(view, 0) || op_trains_param(view, 0);
    if (need_norm) {
        op_cost_stream(cost, WORK_ELEMENTWISE, (double)n, 2 * bytes, bytes);
    }
    if (op_needs_input_grad(view, 1)) {
        op_cost_stream(cost, WORK_ELEMENTWISE, (double)n, 2 * bytes, bytes);
        op_cost_stream(cost, WORK_ELEMENTWISE, 3.0 * (double)n, 2 * bytes, bytes);
    }
    if (op_needs_input_grad(view, 0)) {
        Work work = {.flops = 8.0 * (double)n, .read_bytes = 2 * bytes + stats + weight, .write_bytes = bytes};
        gated_norm_work(view, cost, WORK_NORM_BACKWARD, &work);
    }
    if (op_trains_param(view, 0)) {
        Work work = {.flops = 3.0 * (double)n, .read_bytes = 2 * bytes + stats, .write_bytes = weight};
        gated_norm_work(view, cost, WORK_NORM_WEIGHT_GRAD, &work);
        op_cost_stream(cost, WORK_REDUCE, 0, weight, weight);
    }
}

/* FLOPs per element of the fused backward: what every gradient needs, then each by itself. */
static double gated_norm_backward_flops(const OpView *view, int64_t n, int64_t n_heads)
{
    const GatedNormAttr *attr = view->op->attr;
    gboolean silu = attr->kind == GATED_NORM_SILU;
    double per_elem = silu ? 3 : 2, per_head = 0; /* sigmoid (and SiLU), x / rms */
    if (op_needs_input_grad(view, 1)) {
        per_elem += silu ? 6 : 5;
    }
    if (op_needs_input_grad(view, 0)) {
        per_elem += 2 + 2 + 3;
        per_head += 1;
    }
    per_elem += op_trains_param(view, 0) ? 3 : 0;
    return per_elem * (double)n + per_head * (double)n_heads;
}

static void gated_norm_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const GatedNormAttr *attr = view->op->attr;
    *ret_cost = (OpCost){0};
    if (!op_has_backward(view)) {
        return;
    }
    if (view->op->eager) {
        gated_norm_backward_eager(view, ret_cost);
        return;
    }
    int64_t n = graph_tensor_numel(op_in(view, 0), view->rows), n_heads = n / attr->dim;
    int64_t bytes = op_in_bytes(view, 0), stats = dtype_bytes(op_wide_dtype(view->graph), n_heads);
    int64_t weight = dtype_bytes(op_in(view, 0)->dtype, attr->dim);
    int n_grads = op_needs_input_grad(view, 0) + op_needs_input_grad(view, 1);
    Work work = {
        .flops = gated_norm_backward_flops(view, n, n_heads),
        .read_bytes = 3 * bytes + stats + weight,
        .write_bytes = n_grads * bytes + (op_trains_param(view, 0) ? weight : 0),
    };
    gated_norm_work(view, ret_cost, WORK_NORM_BACKWARD, &work);
}

extern const OpClass op_gated_norm;
const OpClass op_gated_norm = {
    .id = "gated_norm",
    .title = "gated head RMSNorm",
    .saved = gated_norm_saved,
    .forward_cost = gated_norm_forward_cost,
    .backward_cost = gated_norm_backward_cost,
};
#endif
