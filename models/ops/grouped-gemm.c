#include "models/ops/grouped-gemm.h"

#include <string.h>

#include "models/fp8.h"
#include "models/matmul.h"
#include "models/op-name.h"
#include "models/real.h"

REAL_DECLARE(grouped_forward);
REAL_DECLARE(grouped_backward);

/* Sizes of a weight and local experts. */
typedef struct GroupedRun {
    int64_t local, n, k;
    double scale;
    const OpView *view;
} GroupedRun;

static GroupedRun grouped_run(const OpRun *run)
{
    const GroupedGemmAttr *attr = run->view->op->attr;
    return (GroupedRun){
        .local = attr->experts / run->view->graph->ep_size,
        .n = op_weight(run->view, 0)->dims[1],
        .k = op_weight(run->view, 0)->dims[2],
        .scale = attr->scale,
        .view = run->view,
    };
}

/* Counts one product of m rows, n columns and inner size k, whose result has n_out elements. */
static void grouped_count(const OpRun *run, const GroupedRun *g, int64_t m, int64_t n, int64_t k)
{
    double scaling = g->scale == 1 ? 0 : (double)(m * n);
    op_count(run, 2 * (double)m * (double)n * (double)k + scaling, m * k + n * k, m * n);
}

gboolean REAL_NAME(grouped_forward)(const OpRun *run, GError **error)
{
    GroupedRun g = grouped_run(run);
    const real *x = run->in[0]->data;
    const real *w = run->param[0]->data;
    real *y = run->out[0]->data;
    int64_t first = 0;
    (void)error;
    for (int64_t e = 0; e < g.local; e++) {
        int64_t m = grouped_gemm_rows(g.view, g.local, e);
        if (m == 0) {
            continue;
        }
        Matmul shape = {
            .m = m, .n = g.n, .k = g.k, .trans_b = TRUE, .lda = g.k, .ldb = g.k, .ldc = g.n, .alpha = g.scale};
        REAL_NAME(matmul)(&shape, x + first * g.k, w + e * g.n * g.k, y + first * g.n);
        grouped_count(run, &g, m, g.n, g.k);
        first += m;
    }
    if (run->aux[FP8_AUX_CODES] != NULL) {
        memcpy(run->aux[FP8_AUX_CODES]->data, x, (size_t)(first * g.k) * sizeof(real));
        memset(run->aux[FP8_AUX_SCALES]->data, 0, (size_t)tensor_numel(run->aux[FP8_AUX_SCALES]) * sizeof(real));
    }
    return TRUE;
}

/* Weight gradient of one expert; zero for one without rows, which has to be written too. */
static void grouped_weight_gradient(const OpRun *run, const GroupedRun *g, int64_t e, int64_t first, int64_t m)
{
    real *dw = (real *)run->dparam[0]->data + e * g->n * g->k;
    const real *dy = run->dout[0] != NULL ? run->dout[0]->data : NULL;
    grouped_count(run, g, g->n, g->k, m);
    if (m == 0 || dy == NULL) {
        memset(dw, 0, (size_t)(g->n * g->k) * sizeof *dw);
        return;
    }
    const real *x = run->view->op->fp8 ? run->aux[FP8_AUX_CODES]->data : run->in[0]->data;
    Matmul shape = {
        .m = g->n, .n = g->k, .k = m, .trans_a = TRUE, .lda = g->n, .ldb = g->k, .ldc = g->k, .alpha = g->scale};
    REAL_NAME(matmul)(&shape, dy + first * g->n, x + first * g->k, dw);
}

gboolean REAL_NAME(grouped_backward)(const OpRun *run, GError **error)
{
    GroupedRun g = grouped_run(run);
    const real *dy = run->dout[0] != NULL ? run->dout[0]->data : NULL;
    int64_t first = 0;
    (void)error;
    for (int64_t e = 0; e < g.local; e++) {
        int64_t m = grouped_gemm_rows(g.view, g.local, e);
        if (run->din[0] != NULL && m > 0) {
            real *dx = (real *)run->din[0]->data + first * g.k;
            Matmul shape = {.m = m, .n = g.k, .k = g.n, .lda = g.n, .ldb = g.k, .ldc = g.k, .alpha = g.scale};
            grouped_count(run, &g, m, g.k, g.n);
            if (dy == NULL) {
                memset(dx, 0, (size_t)(m * g.k) * sizeof *dx);
            } else {
                REAL_NAME(matmul)(&shape, dy + first * g.n, (const real *)run->param[0]->data + e * g.n * g.k, dx);
            }
        }
        if (run->dparam[0] != NULL) {
            grouped_weight_gradient(run, &g, e, first, m);
        }
        first += m;
    }
    return TRUE;
}

#if REAL_HAS_CLASS
static int add_product(Graph *graph, const char *name, int x, int64_t out, const GroupedGemmAttr *attr)
{
    GraphTensor *in = graph_tensor(graph, x);
    int64_t width = in->width;
    Dtype dtype = in->dtype;
    int weight = graph_add_param(graph, op_name(name, "weight").text, PARAM_MATRIX, attr->experts, out, width);
    graph_param(graph, weight)->split = PARAM_EXPERT;
    int y = graph_add_tensor(graph, op_name(name, "out").text, ROWS_RECEIVED, out, dtype);
    Op *op = op_add(graph, OP_grouped_gemm, name, attr, sizeof *attr);
    op_input(op, x);
    op_param(graph, op, weight);
    op_output(graph, op, y);
    return y;
}

int grouped_gemm_add(Graph *graph, const char *name, int x, int64_t out, int64_t experts)
{
    GroupedGemmAttr attr = {.experts = experts, .scale = 1};
    return add_product(graph, name, x, out, &attr);
}

int grouped_gemm_add_adapter(Graph *graph, const char *name, int x, int64_t out, int64_t experts, double scale)
{
    GroupedGemmAttr attr = {.experts = experts, .scale = scale};
    int y = add_product(graph, name, x, out, &attr);
    GraphParam *weight = graph_param(graph, graph_op(graph, graph_n_ops(graph) - 1)->params[0]);
    weight->trainable = TRUE;
    weight->is_adapter = TRUE;
    return y;
}

int64_t grouped_gemm_rows(const OpView *view, int64_t n_local, int64_t e)
{
    const int64_t *rows = op_expert_rows(view);
    int64_t received = op_rows(view, ROWS_RECEIVED);
    return rows != NULL ? rows[e] : received / n_local + (e < received % n_local ? 1 : 0);
}

int64_t grouped_gemm_busy(const OpView *view, int64_t n_local)
{
    int64_t n_busy = 0;
    for (int64_t e = 0; e < n_local; e++) {
        n_busy += grouped_gemm_rows(view, n_local, e) > 0 ? 1 : 0;
    }
    return n_busy;
}

/* Received rows, sizes of a weight, local experts and those with rows; bytes of an element. */
typedef struct GroupedSize {
    int64_t m, n, k, local, busy, b;
    double scale;
} GroupedSize;

static GroupedSize grouped_size(const OpView *view)
{
    const GroupedGemmAttr *attr = view->op->attr;
    int64_t local = attr->experts / view->graph->ep_size;
    return (GroupedSize){
        .m = op_rows(view, ROWS_RECEIVED),
        .n = op_weight(view, 0)->dims[1],
        .k = op_weight(view, 0)->dims[2],
        .local = local,
        .busy = grouped_gemm_busy(view, local),
        .b = dtype_bytes(op_in(view, 0)->dtype, 1),
        .scale = attr->scale,
    };
}

static void grouped_saved(const OpView *view, OpSaved *ret_saved)
{
    if (op_trains_param(view, 0) && view->op->fp8) {
        fp8_save_input(ret_saved, op_in(view, 0)->rows, op_weight(view, 0)->dims[2]);
    } else {
        *ret_saved = (OpSaved){.inputs = op_trains_param(view, 0) ? 1u : 0u};
    }
}

static Fp8Product grouped_product(const OpView *view, const GroupedSize *s)
{
    return (Fp8Product){.m = s->m, .n = s->n, .k = s->k, .n_weights = s->local, .elem_bytes = s->b,
                        .has_codes = view->op->fp8_codes};
}

/* One product over all groups: m rows, n columns, inner k. Weights of experts without rows are not read. */
static Work *grouped_cost(const OpView *view, const GroupedSize *s, OpCost *cost, int64_t n, int64_t k)
{
    Work *work = op_cost_gemm(cost, WORK_GROUPED_GEMM, op_in(view, 0)->dtype, s->m, n, k);
    work->read_bytes = (s->m * k + s->busy * n * k) * s->b;
    work->n_groups = s->local;
    work->group_rows = op_expert_rows(view);
    if (view->op->fp8) {
        fp8_product(cost);
    }
    return work;
}

/* Scaling of `elems` elements: a kernel of its own when eager, part of the product when fused. */
static void grouped_scale_cost(const OpView *view, const GroupedSize *s, OpCost *cost, int64_t elems)
{
    if (s->scale == 1) {
        return;
    }
    if (view->op->eager) {
        op_cost_stream(cost, WORK_ELEMENTWISE, (double)elems, elems * s->b, elems * s->b);
        cost->workspace_bytes = elems * s->b;
    } else {
        cost->works[cost->n_works - 1].flops += (double)elems;
    }
}

static void grouped_forward_cost(const OpView *view, OpCost *ret_cost)
{
    GroupedSize s = grouped_size(view);
    *ret_cost = (OpCost){0};
    Fp8Product product = grouped_product(view, &s);
    if (view->op->fp8) {
        fp8_forward_operands(ret_cost, &product, op_trains_param(view, 0));
    }
    grouped_cost(view, &s, ret_cost, s.n, s.k);
    grouped_scale_cost(view, &s, ret_cost, s.m * s.n);
}

static void grouped_backward_cost(const OpView *view, OpCost *ret_cost)
{
    GroupedSize s = grouped_size(view);
    gboolean to_input = op_needs_input_grad(view, 0);
    *ret_cost = (OpCost){0};
    if (view->op->eager && op_has_backward(view)) {
        grouped_scale_cost(view, &s, ret_cost, s.m * s.n);
    }
    Fp8Product product = grouped_product(view, &s);
    if (view->op->fp8) {
        fp8_backward_operands(ret_cost, &product, to_input, op_trains_param(view, 0));
    }
    if (to_input) {
        grouped_cost(view, &s, ret_cost, s.k, s.n);
        if (!view->op->eager) {
            grouped_scale_cost(view, &s, ret_cost, s.m * s.k);
        }
    }
    if (op_trains_param(view, 0)) {
        Work *dw = op_cost_gemm(ret_cost, WORK_GROUPED_GEMM_WGRAD, op_in(view, 0)->dtype, s.n, s.k, s.m);
        dw->write_bytes = s.local * s.n * s.k * s.b;
        dw->n_groups = s.local;
        dw->group_rows = op_expert_rows(view);
        if (view->op->fp8) {
            fp8_product(ret_cost);
        }
        if (!view->op->eager) {
            grouped_scale_cost(view, &s, ret_cost, s.local * s.n * s.k);
        }
    }
}

/* Rows of experts: uneven, with empty ones, all in one, even. */
static gboolean grouped_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const int64_t uneven[] = {3, 0, 1, 4};
    static const int64_t one[] = {0, 5, 0};
    static const struct {
        int64_t experts, rows, in, out;
        const int64_t *split;
    } samples[] = {{4, 8, 3, 5, uneven}, {3, 5, 4, 2, one}, {2, 7, 1, 3, NULL}, {5, 3, 2, 1, NULL}};
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    rows->rows[ROWS_EXPERTS] = samples[idx].experts;
    rows->rows[ROWS_LOCAL_EXPERTS] = samples[idx].experts;
    rows->rows[ROWS_RECEIVED] = samples[idx].rows;
    rows->local_expert_rows = samples[idx].split;
    int x = graph_add_input(graph, "x", ROWS_RECEIVED, samples[idx].in, graph->compute, TRUE);
    graph_add_output(
        graph, idx == 2 ? grouped_gemm_add_adapter(graph, "lora_A", x, samples[idx].out, samples[idx].experts, 0.5)
                        : grouped_gemm_add(graph, "w1", x, samples[idx].out, samples[idx].experts));
    return TRUE;
}

extern const OpClass op_grouped_gemm;
const OpClass op_grouped_gemm = {
    .id = "grouped_gemm",
    .title = "grouped GEMM",
    .keep = OP_KEEP_GROUPED_MATMUL,
    .saved = grouped_saved,
    .forward_cost = grouped_forward_cost,
    .backward_cost = grouped_backward_cost,
    .forward = REAL_KERNELS(grouped_forward),
    .backward = REAL_KERNELS(grouped_backward),
    .sample = grouped_sample,
};
#endif
