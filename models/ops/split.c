#include "models/ops/split.h"

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
void split_add(Graph *graph, const char *name, int x, const SplitAttr *attr, int *ret_parts)
{
    static const char *const part_names[SPLIT_PARTS_MAX] = {"0", "1", "2", "3"};
    const GraphTensor in = *graph_tensor(graph, x);
    int64_t group = 0;
    g_assert(attr->n_parts > 0 && attr->n_parts <= SPLIT_PARTS_MAX);
    for (int i = 0; i < attr->n_parts; i++) {
        int64_t width = attr->groups * attr->widths[i];
        group += attr->widths[i];
        ret_parts[i] = graph_add_tensor(graph, op_name(name, part_names[i]).text, in.rows, width, in.dtype);
    }
    g_assert(attr->groups * group == in.width);
    Op *op = op_add(graph, OP_split, name, attr, sizeof *attr);
    op_input(op, x);
    for (int i = 0; i < attr->n_parts; i++) {
        op_output(graph, op, ret_parts[i]);
    }
}

static void split_saved(const OpView *view, OpSaved *ret_saved)
{
    (void)view;
    (void)ret_saved;
}

/* Views: no kernel. */
static void split_forward_cost(const OpView *view, OpCost *ret_cost)
{
    (void)view;
    (void)ret_cost;
}

/* Fused kernels write their part of the gradient in place; the framework joins them. */
static void split_backward_cost(const OpView *view, OpCost *ret_cost)
{
    if (view->op->eager && op_needs_input_grad(view, 0)) {
        op_cost_stream(ret_cost, WORK_STRIDED, 0, op_in_bytes(view, 0), op_in_bytes(view, 0));
    }
}

extern const OpClass op_split;
const OpClass op_split = {
    .id = "split",
    .title = "split",
    .views_input = TRUE,
    .saved = split_saved,
    .forward_cost = split_forward_cost,
    .backward_cost = split_backward_cost,
};
#endif
