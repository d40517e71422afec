#include "models/ops/split.h"

#include <string.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"
#include "models/values.h"

REAL_DECLARE(split_forward);
REAL_DECLARE(split_backward);

/* Copies part i between its own tensor and its places in the whole; the way is given by `joins`. */
static void copy_part(const OpRun *run, int part, real *whole, real *own, gboolean joins)
{
    const SplitAttr *attr = run->view->op->attr;
    int64_t group = 0;
    int64_t offset = 0;
    for (int i = 0; i < attr->n_parts; i++) {
        offset += i < part ? attr->widths[i] : 0;
        group += attr->widths[i];
    }
    int64_t width = attr->widths[part];
    for (int64_t g = 0; g < values_rows(run, 0) * attr->groups; g++) {
        real *in_whole = whole + g * group + offset;
        if (joins) {
            memcpy(in_whole, own + g * width, (size_t)width * sizeof *own);
        } else {
            memcpy(own + g * width, in_whole, (size_t)width * sizeof *own);
        }
    }
}

/* Views in a framework: the copies are not counted. */
gboolean REAL_NAME(split_forward)(const OpRun *run, GError **error)
{
    (void)error;
    for (int i = 0; i < run->view->op->n_outputs; i++) {
        copy_part(run, i, run->in[0]->data, values_out(run, i), FALSE);
    }
    return TRUE;
}

gboolean REAL_NAME(split_backward)(const OpRun *run, GError **error)
{
    real *dx = values_din(run, 0);
    (void)error;
    values_zero_gradients(run);
    for (int i = 0; dx != NULL && i < run->view->op->n_outputs; i++) {
        if (run->dout[i] != NULL) {
            copy_part(run, i, dx, run->dout[i]->data, TRUE);
        }
    }
    return TRUE;
}

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

static gboolean split_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        int64_t rows;
        SplitAttr attr;
    } samples[] = {{3, {2, 2, {4, 3}}}, {1, {1, 1, {1}}}, {5, {3, 4, {1, 2, 3, 1}}}};
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    const SplitAttr *attr = &samples[idx].attr;
    int parts[SPLIT_PARTS_MAX];
    int64_t width = 0;
    for (int i = 0; i < attr->n_parts; i++) {
        width += attr->widths[i];
    }
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->seq_len = samples[idx].rows;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, attr->groups * width, graph->compute, TRUE);
    split_add(graph, "split", x, attr, parts);
    for (int i = 0; i < attr->n_parts; i++) {
        graph_add_output(graph, parts[i]);
    }
    return TRUE;
}

extern const OpClass op_split;
const OpClass op_split = {
    .id = "split",
    .title = "split",
    .views_input = TRUE,
    .saved = split_saved,
    .forward_cost = split_forward_cost,
    .backward_cost = split_backward_cost,
    .forward = REAL_KERNELS(split_forward),
    .backward = REAL_KERNELS(split_backward),
    .sample = split_sample,
};
#endif
