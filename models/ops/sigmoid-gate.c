#include "models/ops/sigmoid-gate.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

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
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, flops, x + gate + (dgate ? x : 0), (dx ? x : 0) + (dgate ? gate : 0));
    }
}

extern const OpClass op_sigmoid_gate;
const OpClass op_sigmoid_gate = {
    .id = "sigmoid_gate",
    .title = "sigmoid gate",
    .saved = sigmoid_gate_saved,
    .forward_cost = sigmoid_gate_forward_cost,
    .backward_cost = sigmoid_gate_backward_cost,
};
#endif
