#include "models/ops/router-loss.h"

#include "models/op-name.h"
#include "models/real.h"

#if REAL_HAS_CLASS
int router_loss_add(Graph *graph, const char *name, int logits, int sel, const RouterLossAttr *attr)
{
    int loss = graph_add_tensor(graph, op_name(name, "loss").text, ROWS_ONE, 1, op_wide_dtype(graph));
    Op *op = op_add(graph, OP_router_loss, name, attr, sizeof *attr);
    op_input(op, logits);
    op_input(op, attr->kind == ROUTER_LOSS_Z ? -1 : sel);
    op_output(graph, op, loss);
    return loss;
}

enum { IN_LOGITS, IN_SEL };

/* FLOPs per logit of the forward pass: softmax 5, sigmoid and its share of the sum 3; log-sum-exp 4. */
static double loss_forward_flops(const RouterLossAttr *attr)
{
    if (attr->kind == ROUTER_LOSS_Z) {
        return 4;
    }
    return attr->score == ROUTER_SIGMOID ? 3 : 5;
}

static int64_t loss_scopes(const OpView *view)
{
    const RouterLossAttr *attr = view->op->attr;
    int64_t n = op_rows(view, ROWS_TOKENS);
    return attr->per_sequence && view->rows->seq_len > 0 ? n / view->rows->seq_len : 1;
}

/* Fused: logits and selection, scores are made again. Eager: what the nodes keep. */
static void router_loss_saved(const OpView *view, OpSaved *ret_saved)
{
    const RouterLossAttr *attr = view->op->attr;
    Dtype wide = op_wide_dtype(view->graph);
    *ret_saved = (OpSaved){0};
    if (!op_needs_input_grad(view, IN_LOGITS)) {
        return;
    }
    if (!view->op->eager) {
        ret_saved->inputs = 1u << IN_LOGITS | (attr->kind == ROUTER_LOSS_AUX ? 1u << IN_SEL : 0u);
        return;
    }
    if (attr->kind == ROUTER_LOSS_Z) {
        ret_saved->inputs = 1u << IN_LOGITS;
        op_saved_aux(ret_saved, ROWS_TOKENS, 1, wide);
        return;
    }
    op_saved_aux(ret_saved, ROWS_TOKENS, attr->experts, wide); /* scores */
    if (attr->score == ROUTER_SIGMOID) {
        op_saved_aux(ret_saved, ROWS_TOKENS, 1, wide); /* their sums */
    }
}

static void router_loss_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const RouterLossAttr *attr = view->op->attr;
    int64_t n = op_rows(view, ROWS_TOKENS);
    int64_t logits = op_in_bytes(view, IN_LOGITS);
    int64_t wide = dtype_bytes(op_wide_dtype(view->graph), 1);
    int64_t per_expert = loss_scopes(view) * attr->experts;
    int64_t sel = dtype_bytes(DTYPE_INT64, n * attr->top_k);
    double elems = (double)(n * attr->experts);
    gboolean aux = attr->kind == ROUTER_LOSS_AUX;
    *ret_cost = (OpCost){0};
    if (!view->op->eager) {
        double flops = elems * (loss_forward_flops(attr) + (aux ? 1 : 0));
        flops += aux ? 2.0 * (double)per_expert + 1 : 3.0 * (double)n + 1;
        op_cost_stream(ret_cost, WORK_SOFTMAX, flops, logits + (aux ? sel : 0), wide);
        return;
    }
    if (!aux) {
        op_cost_stream(ret_cost, WORK_REDUCE, 4 * elems, logits, n * wide); /* log-sum-exp */
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, (double)n, n * wide, n * wide);
        op_cost_stream(ret_cost, WORK_REDUCE, (double)n, n * wide, wide);
    } else {
        op_cost_stream(ret_cost, WORK_SOFTMAX, elems * loss_forward_flops(attr), logits, logits);
        op_cost_stream(ret_cost, WORK_REDUCE, elems, logits, per_expert * wide);
        op_cost_stream(ret_cost, WORK_SCATTER_ADD, 0, sel, per_expert * wide); /* counts */
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, (double)per_expert, 2 * per_expert * wide, per_expert * wide);
        op_cost_stream(ret_cost, WORK_REDUCE, (double)per_expert, per_expert * wide, wide);
    }
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, 1, wide, wide); /* coefficient */
}

static void router_loss_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const RouterLossAttr *attr = view->op->attr;
    int64_t n = op_rows(view, ROWS_TOKENS);
    int64_t logits = op_in_bytes(view, IN_LOGITS);
    int64_t wide = dtype_bytes(op_wide_dtype(view->graph), 1);
    int64_t sel = dtype_bytes(DTYPE_INT64, n * attr->top_k);
    double elems = (double)(n * attr->experts);
    double per_expert = (double)(loss_scopes(view) * attr->experts);
    gboolean aux = attr->kind == ROUTER_LOSS_AUX;
    gboolean sigmoid = attr->score == ROUTER_SIGMOID;
    *ret_cost = (OpCost){0};
    if (!op_needs_input_grad(view, IN_LOGITS)) {
        return;
    }
    if (!view->op->eager) {
        double flops = elems * (loss_forward_flops(attr) + (!aux ? 3 : sigmoid ? 6 : 4));
        flops += aux ? per_expert + 1 : 2.0 * (double)n + 1;
        op_cost_stream(ret_cost, WORK_SOFTMAX, flops, logits + (aux ? sel : 0) + wide, logits);
        return;
    }
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, 1, wide, wide);
    op_cost_stream(ret_cost, WORK_STRIDED, elems, n * wide, logits); /* gradient widened to the logits' shape */
    op_cost_stream(ret_cost, WORK_SOFTMAX, elems * (aux ? 4 : 3), 2 * logits, logits);
    ret_cost->workspace_bytes = logits;
}

extern const OpClass op_router_loss;
const OpClass op_router_loss = {
    .id = "router_loss",
    .title = "router loss",
    .no_grad_inputs = 1u << IN_SEL,
    .saved = router_loss_saved,
    .forward_cost = router_loss_forward_cost,
    .backward_cost = router_loss_backward_cost,
};
#endif
