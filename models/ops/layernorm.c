#include "models/ops/layernorm.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int layernorm_add(Graph *graph, const char *name, int x, double eps)
{
    const GraphTensor in = *graph_tensor(graph, x);
    LayernormAttr attr = {.eps = eps};
    int weight = graph_add_param(graph, op_name(name, "weight").text, PARAM_VECTOR, in.width, 0, 0);
    int bias = graph_add_param(graph, op_name(name, "bias").text, PARAM_VECTOR, in.width, 0, 0);
    int y = graph_add_tensor(graph, name, in.rows, in.width, in.dtype);
    Op *op = op_add(graph, OP_layernorm, name, &attr, sizeof attr);
    op_input(op, x);
    op_param(graph, op, weight);
    op_param(graph, op, bias);
    op_output(graph, op, y);
    return y;
}

static void layernorm_saved(const OpView *view, OpSaved *ret_saved)
{
    ret_saved->inputs = 1;
    op_saved_aux(ret_saved, op_in(view, 0)->rows, 1, DTYPE_FP32); /* mean */
    op_saved_aux(ret_saved, op_in(view, 0)->rows, 1, DTYPE_FP32); /* 1 / deviation */
}

/* Sum w, mean 1; x - mean w, squares and their sum 2w, mean, eps and root 3; scaling 2w, bias w. */
static void layernorm_forward_cost(const OpView *view, OpCost *ret_cost)
{
    int64_t rows = op_rows(view, op_in(view, 0)->rows);
    int64_t width = op_in(view, 0)->width;
    int64_t stats = dtype_bytes(DTYPE_FP32, 2 * rows);
    int64_t weights = op_weight_bytes(view, 0) + op_weight_bytes(view, 1);
    double flops = (double)rows * (7 * (double)width + 4);
    Work *work = op_cost_stream(ret_cost, WORK_NORM_FORWARD, flops, op_in_bytes(view, 0) + weights, op_out_bytes(view, 0) + stats);
    work->m = rows;
    work->n = width;
}

/*
 * Per number: the normed x 2; for dx: g = dy w 1, the means of g and xhat g 3, r (g - mean - xhat mean) 4 and 2 per
 * row; for the weights 3.
 */
static void layernorm_backward_cost(const OpView *view, OpCost *ret_cost)
{
    int64_t rows = op_rows(view, op_in(view, 0)->rows);
    int64_t width = op_in(view, 0)->width;
    gboolean dx = op_needs_input_grad(view, 0);
    gboolean dw = op_trains_param(view, 0) || op_trains_param(view, 1);
    double n = (double)rows * (double)width;
    double dx_flops = 8 * n + 2 * (double)rows;
    int64_t read = op_in_bytes(view, 0) + op_out_bytes(view, 0) + dtype_bytes(DTYPE_FP32, 2 * rows);
    int64_t weight = op_weight_bytes(view, 0);
    if (dx && dw && view->op->eager) {
        op_cost_stream(ret_cost, WORK_NORM_BACKWARD, 2 * n + dx_flops, read + weight, op_in_bytes(view, 0));
        op_cost_stream(ret_cost, WORK_NORM_WEIGHT_GRAD, 5 * n, read, 2 * weight);
    } else if (dx || dw) {
        op_cost_stream(ret_cost, dx ? WORK_NORM_BACKWARD : WORK_NORM_WEIGHT_GRAD, 2 * n + (dx ? dx_flops : 0) + (dw ? 3 * n : 0),
                       read + (dx ? weight : 0), (dx ? op_in_bytes(view, 0) : 0) + (dw ? 2 * weight : 0));
    }
    for (int i = 0; i < ret_cost->n_works; i++) {
        ret_cost->works[i].m = rows;
        ret_cost->works[i].n = width;
    }
}

extern const OpClass op_layernorm;
const OpClass op_layernorm = {
    .id = "layernorm",
    .title = "LayerNorm",
    .saved = layernorm_saved,
    .forward_cost = layernorm_forward_cost,
    .backward_cost = layernorm_backward_cost,
};
#endif
