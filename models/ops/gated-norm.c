#include "models/ops/gated-norm.h"

#include <string.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/real-math.h"
#include "models/real.h"

enum { AUX_NORMS, AUX_NORMED, AUX_GATE };

REAL_DECLARE(gated_norm_forward);
REAL_DECLARE(gated_norm_backward);

/* f(gate), and its derivative (kernels.md 1.4). */
static real gated_norm_gate(GatedNormKind kind, real gate, real *ret_slope)
{
    real s = real_sigmoid(gate);
    if (kind == GATED_NORM_SIGMOID) {
        *ret_slope = s * (1 - s);
        return s;
    }
    real silu = gate * s;
    *ret_slope = s + silu * (1 - s);
    return silu;
}

gboolean REAL_NAME(gated_norm_forward)(const OpRun *run, GError **error)
{
    (void)error;
    const GatedNormAttr *attr = run->view->op->attr;
    const real *x = real_data_const(run->in[0]), *gate = real_data_const(run->in[1]),
               *w = real_data_const(run->param[0]);
    real *y = real_data(run->out[0]), *r = real_data(run->aux[0]);
    int64_t dim = attr->dim, n = tensor_numel(run->in[0]), n_heads = n / dim;
    for (int64_t h = 0; h < n_heads; h++) {
        real sum = 0, slope;
        for (int64_t d = h * dim; d < (h + 1) * dim; d++) {
            sum += x[d] * x[d];
        }
        r[h] = 1 / real_sqrt(sum / (real)dim + (real)attr->eps);
        for (int64_t d = 0; d < dim; d++) {
            int64_t i = h * dim + d;
            real normed = w[d] * (x[i] * r[h]), f = gated_norm_gate(attr->kind, gate[i], &slope);
            y[i] = normed * f;
            if (run->aux[AUX_NORMED] != NULL) { /* the factors of a chain's product */
                real_data(run->aux[AUX_NORMED])[i] = normed;
                real_data(run->aux[AUX_GATE])[i] = f;
            }
        }
    }
    double gate_flops = attr->kind == GATED_NORM_SILU ? 3 : 2;
    op_count(run, (4 + gate_flops) * (double)n + 3.0 * (double)n_heads, 2 * n + dim, n + n_heads);
    return TRUE;
}

/* One head of the backward pass; dx, dgate, dw may be NULL. */
typedef struct GatedNormHead {
    const real *x, *gate, *w, *dy; /* gate NULL: f is kept, and enough */
    const real *normed, *f;        /* what a chain keeps; NULL = made again */
    real r;
    real *dx, *dgate, *dw;
} GatedNormHead;

static void gated_norm_head_backward(const GatedNormAttr *attr, const GatedNormHead *head)
{
    real dot = 0, slope = 0;
    for (int64_t d = 0; d < attr->dim; d++) {
        real f = head->gate != NULL ? gated_norm_gate(attr->kind, head->gate[d], &slope) : 0,
             normed = head->x[d] * head->r;
        real scaled = head->normed != NULL ? head->normed[d] : head->w[d] * normed;
        if (head->f != NULL) {
            f = head->f[d];
            slope = attr->kind == GATED_NORM_SIGMOID ? f * (1 - f) : slope;
        }
        if (head->dgate != NULL) {
            head->dgate[d] = head->dy[d] * scaled * slope;
        }
        if (head->dw != NULL) {
            head->dw[d] += head->dy[d] * f * normed;
        }
        if (head->dx != NULL) {
            head->dx[d] = head->dy[d] * f * head->w[d];
            dot += head->dx[d] * normed;
        }
    }
    dot /= (real)attr->dim;
    for (int64_t d = 0; head->dx != NULL && d < attr->dim; d++) {
        head->dx[d] = head->r * (head->dx[d] - head->x[d] * head->r * dot);
    }
}

/* Counts as gated_norm_head_backward() computes: f and its slope, the normed value, then what each gradient adds. */
static void gated_norm_count_backward(const OpRun *run)
{
    const GatedNormAttr *attr = run->view->op->attr;
    gboolean silu = attr->kind == GATED_NORM_SILU;
    int64_t n = tensor_numel(run->in[0]), n_heads = n / attr->dim;
    gboolean need_x = run->din[0] != NULL, need_gate = run->din[1] != NULL, need_w = run->dparam[0] != NULL;
    double per_elem = (silu ? 5 : 3) + 1 + (need_gate ? 3 : 0) + (need_w ? 3 : 0) + (need_x ? 4 + 4 : 0);
    op_count(run, per_elem * (double)n + (need_x ? (double)n_heads : 0), 3 * n + n_heads + attr->dim,
             ((need_x ? 1 : 0) + (need_gate ? 1 : 0)) * n + (need_w ? attr->dim : 0));
}

gboolean REAL_NAME(gated_norm_backward)(const OpRun *run, GError **error)
{
    (void)error;
    const GatedNormAttr *attr = run->view->op->attr;
    const real *dy = real_data_const(run->dout[0]), *r = real_data_const(run->aux[0]);
    int64_t dim = attr->dim, n_heads = tensor_numel(run->in[0]) / dim;
    Tensor *written[] = {run->din[0], run->din[1], run->dparam[0]};
    for (guint i = 0; i < G_N_ELEMENTS(written); i++) {
        if (written[i] != NULL) {
            memset(written[i]->data, 0, (size_t)tensor_numel(written[i]) * sizeof(real));
        }
    }
    for (int64_t h = 0; dy != NULL && h < n_heads; h++) {
        real *dx = real_data(run->din[0]), *dgate = real_data(run->din[1]);
        const real *gate = real_data_const(run->in[1]), *normed = real_data_const(run->aux[AUX_NORMED]);
        const real *f = real_data_const(run->aux[AUX_GATE]);
        GatedNormHead head = {
            .x = real_data_const(run->in[0]) + h * dim,
            .gate = gate != NULL ? gate + h * dim : NULL,
            .normed = normed != NULL ? normed + h * dim : NULL,
            .f = f != NULL ? f + h * dim : NULL,
            .w = real_data_const(run->param[0]),
            .dy = dy + h * dim,
            .r = r[h],
            .dx = dx != NULL ? dx + h * dim : NULL,
            .dgate = dgate != NULL ? dgate + h * dim : NULL,
            .dw = real_data(run->dparam[0]),
        };
        gated_norm_head_backward(attr, &head);
    }
    gated_norm_count_backward(run);
    return TRUE;
}

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

/* FLOPs of the fused backward: f and its slope 3 (SiLU 5), the normed value 1, then what each gradient adds. */
static double gated_norm_backward_flops(const OpView *view, int64_t n, int64_t n_heads)
{
    const GatedNormAttr *attr = view->op->attr;
    double per_elem = attr->kind == GATED_NORM_SILU ? 6 : 4, per_head = 0;
    per_elem += op_needs_input_grad(view, 1) ? 3 : 0;
    per_elem += op_trains_param(view, 0) ? 3 : 0;
    if (op_needs_input_grad(view, 0)) {
        per_elem += 2 + 2 + 4; /* upstream of the norm, its dot product with the normed value, the norm's gradient */
        per_head += 1;
    }
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

static gboolean gated_norm_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        int64_t rows, heads, dim;
        GatedNormKind kind;
        double eps;
    } samples[] = {
        {4, 3, 6, GATED_NORM_SIGMOID, 1e-5},
        {3, 2, 5, GATED_NORM_SILU, 1e-6},
        {1, 1, 1, GATED_NORM_SILU, 1e-5},
        {5, 1, 8, GATED_NORM_SIGMOID, 1e-5},
    };
    if (idx < 0 || idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    int64_t dim = samples[idx].dim, width = samples[idx].heads * dim;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, width, graph->compute, TRUE);
    int gate = graph_add_input(graph, "gate", ROWS_TOKENS, width, graph->compute, TRUE);
    graph_add_output(graph, gated_norm_add(graph, "o_norm", x, gate, dim, samples[idx].kind, samples[idx].eps));
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->rows[ROWS_SEQUENCES] = 1;
    rows->seq_len = samples[idx].rows;
    return TRUE;
}

extern const OpClass op_gated_norm;
const OpClass op_gated_norm = {
    .id = "gated_norm",
    .title = "gated head RMSNorm",
    .saved = gated_norm_saved,
    .forward_cost = gated_norm_forward_cost,
    .backward_cost = gated_norm_backward_cost,
    .forward = REAL_KERNELS(gated_norm_forward),
    .backward = REAL_KERNELS(gated_norm_backward),
    .sample = gated_norm_sample,
};
#endif
