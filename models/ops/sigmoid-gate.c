#include "models/ops/sigmoid-gate.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real-math.h"
#include "models/real.h"
#include "models/values.h"

REAL_DECLARE(sigmoid_gate_forward);
REAL_DECLARE(sigmoid_gate_backward);

/* Numbers that one gate serves. */
static int64_t gate_width(const OpRun *run)
{
    return op_in(run->view, 0)->width / op_in(run->view, 1)->width;
}

gboolean REAL_NAME(sigmoid_gate_forward)(const OpRun *run, GError **error)
{
    const real *gates = values_in(run, 1);
    int64_t width = gate_width(run);
    int64_t elem = op_in_elem_bytes(run->view, 0);
    (void)error;
    for (int64_t g = 0; g < tensor_numel(run->in[1]); g++) {
        const real *x = values_in(run, 0) + g * width;
        real *y = values_out(run, 0) + g * width;
        real s = real_sigmoid(gates[g]);
        for (int64_t j = 0; j < width; j++) {
            y[j] = x[j] * s;
        }
        if (run->aux[0] != NULL) {
            values_aux(run, 0)[g] = s;
        }
        op_count_bytes(run, (double)(width + 1), elem * width + op_in_elem_bytes(run->view, 1), elem * width);
    }
    return TRUE;
}

gboolean REAL_NAME(sigmoid_gate_backward)(const OpRun *run, GError **error)
{
    int64_t width = gate_width(run);
    int64_t elem = op_in_elem_bytes(run->view, 0);
    int64_t gate_elem = op_in_elem_bytes(run->view, 1);
    gboolean dx = run->din[0] != NULL;
    gboolean dgate = run->din[1] != NULL;
    (void)error;
    if (run->dout[0] == NULL || (!dx && !dgate)) {
        values_zero_gradients(run);
        return TRUE;
    }
    int64_t n_gates = tensor_numel(run->dout[0]) / width;
    for (int64_t g = 0; g < n_gates; g++) {
        const real *dy = values_dout(run, 0) + g * width;
        real s = run->aux[0] != NULL ? values_aux(run, 0)[g] : real_sigmoid(values_in(run, 1)[g]);
        real sum = 0;
        for (int64_t j = 0; j < width; j++) {
            if (dgate) {
                sum += dy[j] * values_in(run, 0)[g * width + j];
            }
            if (dx) {
                values_din(run, 0)[g * width + j] = dy[j] * s;
            }
        }
        op_count_bytes(run, 1 + (dx ? (double)width : 0), elem * width + gate_elem, dx ? elem * width : 0);
        if (dgate) {
            values_din(run, 1)[g] = sum * s * (1 - s);
            op_count_bytes(run, (double)(width > 1 ? 2 * width : 1) + 3, elem * width, gate_elem);
        }
    }
    return TRUE;
}

#if REAL_HAS_CLASS
int sigmoid_gate_add(Graph *graph, const char *name, int x, int gate)
{
    const GraphTensor in = *graph_tensor(graph, x);
    g_assert(in.width % graph_tensor(graph, gate)->width == 0);
    int y = graph_add_tensor(graph, name, in.rows, in.width, in.dtype);
    Op *op = op_add(graph, OP_sigmoid_gate, name, NULL, 0);
    op_input(op, x);
    op_input(op, gate);
    op_output(graph, op, y);
    return y;
}

static void sigmoid_gate_saved(const OpView *view, OpSaved *ret_saved)
{
    const GraphTensor *gate = op_in(view, 1);
    gboolean dx = op_needs_input_grad(view, 0);
    gboolean dgate = op_needs_input_grad(view, 1);
    if (!view->op->eager) {
        ret_saved->inputs = (dgate ? 1u : 0u) | (dx || dgate ? 2u : 0u);
        return;
    }
    ret_saved->inputs = dgate ? 1 : 0;
    if (dx || dgate) {
        op_saved_aux(ret_saved, gate->rows, gate->width, gate->dtype); /* sigmoid(gate) */
    }
}

/* Sigmoid 1 per gate, product 1 per number. Eager: each its own kernel; a gate that is part of a split is copied. */
static void sigmoid_gate_forward_cost(const OpView *view, OpCost *ret_cost)
{
    double n = (double)graph_tensor_numel(op_in(view, 0), view->rows);
    double gates = (double)graph_tensor_numel(op_in(view, 1), view->rows);
    int64_t x = op_in_bytes(view, 0);
    int64_t gate = op_in_bytes(view, 1);
    gboolean maker_eager;
    if (!view->op->eager) {
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, n + gates, x + gate, x);
        return;
    }
    if (op_in_maker(view, 1, &maker_eager) == OP_split) {
        op_cost_stream(ret_cost, WORK_STRIDED, 0, gate, gate);
        ret_cost->workspace_bytes = gate;
    }
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, gates, gate, gate);
    op_cost_stream(ret_cost, gate < x ? WORK_STRIDED : WORK_ELEMENTWISE, n, x + gate, x);
}

/*
 * dx = dy s: 1. dgate = s (1 - s) times the sum of dy x over the run: 3 per gate, 1 per number (2 if it is a sum).
 * Eager: products, the sum, and the derivative of the sigmoid.
 */
static void eager_backward_cost(const OpView *view, OpCost *ret_cost)
{
    double n = (double)graph_tensor_numel(op_in(view, 0), view->rows);
    double gates = (double)graph_tensor_numel(op_in(view, 1), view->rows);
    int64_t x = op_in_bytes(view, 0);
    int64_t gate = op_in_bytes(view, 1);
    WorkLaw law = gate < x ? WORK_STRIDED : WORK_ELEMENTWISE;
    if (op_needs_input_grad(view, 0)) {
        op_cost_stream(ret_cost, law, n, x + gate, x);
    }
    if (!op_needs_input_grad(view, 1)) {
        return;
    }
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, n, 2 * x, x);
    if (gate < x) {
        op_cost_stream(ret_cost, WORK_REDUCE, n, x, gate);
    }
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, 3 * gates, 2 * gate, gate);
    ret_cost->workspace_bytes = x + (gate < x ? gate : 0);
}

static void sigmoid_gate_backward_cost(const OpView *view, OpCost *ret_cost)
{
    double n = (double)graph_tensor_numel(op_in(view, 0), view->rows);
    double gates = (double)graph_tensor_numel(op_in(view, 1), view->rows);
    int64_t x = op_in_bytes(view, 0);
    int64_t gate = op_in_bytes(view, 1);
    gboolean dx = op_needs_input_grad(view, 0);
    gboolean dgate = op_needs_input_grad(view, 1);
    if (view->op->eager) {
        eager_backward_cost(view, ret_cost);
    } else if (dx || dgate) {
        double flops = gates + (dx ? n : 0) + (dgate ? (gate < x ? 2 : 1) * n + 3 * gates : 0);
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, flops, x + gate + (dgate ? x : 0),
                       (dx ? x : 0) + (dgate ? gate : 0));
    }
}

static gboolean sigmoid_gate_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        int64_t rows, width, gates;
        gboolean x_grad, gate_grad;
    } samples[] = {{5, 6, 6, TRUE, TRUE},
                   {1, 1, 1, TRUE, TRUE},
                   {4, 6, 2, TRUE, TRUE},
                   {3, 5, 1, FALSE, TRUE},
                   {3, 4, 4, TRUE, FALSE}};
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->seq_len = samples[idx].rows;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, samples[idx].width, graph->compute, samples[idx].x_grad);
    int gate = graph_add_input(graph, "gate", ROWS_TOKENS, samples[idx].gates, graph->compute, samples[idx].gate_grad);
    graph_add_output(graph, sigmoid_gate_add(graph, "gate", x, gate));
    return TRUE;
}

extern const OpClass op_sigmoid_gate;
const OpClass op_sigmoid_gate = {
    .id = "sigmoid_gate",
    .title = "sigmoid gate",
    .saved = sigmoid_gate_saved,
    .forward_cost = sigmoid_gate_forward_cost,
    .backward_cost = sigmoid_gate_backward_cost,
    .forward = REAL_KERNELS(sigmoid_gate_forward),
    .backward = REAL_KERNELS(sigmoid_gate_backward),
    .sample = sigmoid_gate_sample,
};
#endif
