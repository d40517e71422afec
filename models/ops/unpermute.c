#include "models/ops/unpermute.h"

#include <string.h>

#include "models/moe-tables.h"
#include "models/op-name.h"
#include "models/ops/moe-sample.h"
#include "models/ops/permute.h"
#include "models/real.h"

enum { IN_ROWS, IN_WEIGHTS, IN_ORDER, IN_COUNTS };

enum { AUX_PRODUCT, AUX_TOKEN, AUX_WEIGHT }; /* eager, by slot */

REAL_DECLARE(unpermute_forward);
REAL_DECLARE(unpermute_backward);

/* What a chain keeps: weighted rows, the token that each goes to (-1 = none), the weights as a column. */
static void unpermute_keep(const OpRun *run, const int64_t *slot_of, int64_t n_choices)
{
    int64_t slots = op_rows(run->view, op_in(run->view, IN_ROWS)->rows), width = op_in(run->view, IN_ROWS)->width;
    const real *rows = run->in[IN_ROWS]->data, *weights = run->in[IN_WEIGHTS]->data;
    real *product = run->aux[AUX_PRODUCT]->data,
         *column = run->aux[AUX_WEIGHT] != NULL ? run->aux[AUX_WEIGHT]->data : NULL;
    permute_tokens(slot_of, n_choices, op_in(run->view, IN_ORDER)->width, slots, run->aux[AUX_TOKEN]->data);
    memset(product, 0, (size_t)(slots * width) * sizeof *product);
    if (column != NULL) {
        memset(column, 0, (size_t)slots * sizeof *column);
    }
    for (int64_t i = 0; i < n_choices; i++) {
        for (int64_t c = 0; slot_of[i] >= 0 && c < width; c++) {
            product[slot_of[i] * width + c] = weights[i] * rows[slot_of[i] * width + c];
        }
        if (slot_of[i] >= 0 && column != NULL) {
            column[slot_of[i]] = weights[i];
        }
    }
}

/* Gradients from what a chain has kept: the gathered gradient times both factors of its product. */
static void unpermute_chain_backward(const OpRun *run, const real *dout)
{
    int64_t slots = op_rows(run->view, op_in(run->view, IN_ROWS)->rows), width = op_in(run->view, IN_ROWS)->width;
    const int64_t *token = run->aux[AUX_TOKEN]->data;
    real *drows = run->din[IN_ROWS] != NULL ? run->din[IN_ROWS]->data : NULL;
    g_autofree real *dot = g_new0(real, (gsize)(slots + 1));
    for (int64_t s = 0; s < slots; s++) {
        const real *dy = token[s] >= 0 ? dout + token[s] * width : NULL;
        for (int64_t c = 0; drows != NULL && c < width; c++) {
            drows[s * width + c] = dy != NULL ? ((const real *)run->aux[AUX_WEIGHT]->data)[s] * dy[c] : 0;
        }
        for (int64_t c = 0; dy != NULL && run->in[IN_ROWS] != NULL && c < width; c++) {
            dot[s] += dy[c] * ((const real *)run->in[IN_ROWS]->data)[s * width + c];
        }
    }
    if (run->din[IN_WEIGHTS] != NULL) {
        g_autofree int64_t *slot_of = permute_slot_of(run->in[IN_ORDER], run->in[IN_COUNTS], slots);
        for (int64_t i = 0; i < tensor_numel(run->din[IN_WEIGHTS]); i++) {
            ((real *)run->din[IN_WEIGHTS]->data)[i] = slot_of[i] >= 0 ? dot[slot_of[i]] : 0;
        }
    }
}

gboolean REAL_NAME(unpermute_forward)(const OpRun *run, GError **error)
{
    int64_t n = op_rows(run->view, op_in(run->view, IN_ORDER)->rows);
    int64_t slots = op_rows(run->view, op_in(run->view, IN_ROWS)->rows);
    int64_t width = op_in(run->view, IN_ROWS)->width;
    int64_t k = op_in(run->view, IN_ORDER)->width;
    const real *rows = run->in[IN_ROWS]->data;
    const real *weights = run->in[IN_WEIGHTS]->data;
    real *out = run->out[0]->data;
    g_autofree int64_t *slot_of = permute_slot_of(run->in[IN_ORDER], run->in[IN_COUNTS], slots);
    (void)error;
    memset(out, 0, (size_t)(n * width) * sizeof *out);
    op_count(run, 0, 0, n * width);
    for (int64_t i = 0; i < n * k; i++) { /* by token, then by choice */
        if (slot_of[i] < 0) {
            continue;
        }
        for (int64_t c = 0; c < width; c++) {
            out[i / k * width + c] += weights[i] * rows[slot_of[i] * width + c];
        }
    }
    if (run->aux[AUX_PRODUCT] != NULL) {
        unpermute_keep(run, slot_of, n * k);
    }
    op_count(run, 2 * (double)(slots * width), slots * (width + 2), 0);
    return TRUE;
}

/* By slot, as a kernel over padded slots reads and writes them all. */
static void unpermute_count_backward(const OpRun *run, int64_t slots, int64_t width)
{
    gboolean to_weights = run->din[IN_WEIGHTS] != NULL;
    int64_t n_weights = to_weights ? tensor_numel(run->din[IN_WEIGHTS]) : 0;
    op_count(run, (to_weights ? 2 * (double)(slots * width) : 0), (to_weights ? slots * width : 0) + slots * (width + 1), n_weights);
    if (run->din[IN_ROWS] != NULL) {
        op_count(run, (double)(slots * width), slots, slots * width);
    }
}

gboolean REAL_NAME(unpermute_backward)(const OpRun *run, GError **error)
{
    int64_t n = op_rows(run->view, op_in(run->view, IN_ORDER)->rows);
    int64_t slots = op_rows(run->view, op_in(run->view, IN_ROWS)->rows);
    int64_t width = op_in(run->view, IN_ROWS)->width;
    int64_t k = op_in(run->view, IN_ORDER)->width;
    real *drows = run->din[IN_ROWS] != NULL ? run->din[IN_ROWS]->data : NULL;
    real *dweights = run->din[IN_WEIGHTS] != NULL ? run->din[IN_WEIGHTS]->data : NULL;
    g_autofree real *zero = run->dout[0] == NULL ? g_new0(real, (gsize)(n * width)) : NULL;
    const real *dout = zero != NULL ? zero : run->dout[0]->data;
    if (run->aux[AUX_PRODUCT] != NULL) {
        unpermute_chain_backward(run, dout);
        return TRUE;
    }
    const real *rows = dweights != NULL ? run->in[IN_ROWS]->data : NULL;
    const real *weights = drows != NULL ? run->in[IN_WEIGHTS]->data : NULL;
    g_autofree int64_t *slot_of = permute_slot_of(run->in[IN_ORDER], run->in[IN_COUNTS], slots);
    (void)error;
    if (drows != NULL && run->in[IN_COUNTS] != NULL) { /* padding has no gradient */
        memset(drows, 0, (size_t)(slots * width) * sizeof *drows);
    }
    for (int64_t i = 0; i < n * k; i++) {
        const real *dy = dout + i / k * width;
        real dot = 0;
        for (int64_t c = 0; dweights != NULL && slot_of[i] >= 0 && c < width; c++) {
            dot += dy[c] * rows[slot_of[i] * width + c];
        }
        for (int64_t c = 0; drows != NULL && slot_of[i] >= 0 && c < width; c++) {
            drows[slot_of[i] * width + c] = weights[i] * dy[c];
        }
        if (dweights != NULL) {
            dweights[i] = dot;
        }
    }
    unpermute_count_backward(run, slots, width);
    return TRUE;
}

#if REAL_HAS_CLASS
static int unpermute_add_all(Graph *graph, const char *name, int yp, int weights, int order, int counts)
{
    UnpermuteAttr attr = {.top_k = graph_tensor(graph, order)->width};
    GraphTensor *in = graph_tensor(graph, yp);
    int out = graph_add_tensor(graph, op_name(name, "out").text, graph_tensor(graph, order)->rows, in->width, in->dtype);
    Op *op = op_add(graph, OP_unpermute, name, &attr, sizeof attr);
    op_input(op, yp);
    op_input(op, weights);
    op_input(op, order);
    op_input(op, counts);
    op_output(graph, op, out);
    return out;
}

int unpermute_add(Graph *graph, const char *name, int yp, int weights, int order)
{
    return unpermute_add_all(graph, name, yp, weights, order, -1);
}

int unpermute_add_padded(Graph *graph, const char *name, int yp, int weights, int order, int counts)
{
    return unpermute_add_all(graph, name, yp, weights, order, counts);
}

/* Sizes: tokens, slots, choices, row width; bytes of an element, of a weight and of an index. */
typedef struct UnpermuteSize {
    int64_t n, slots, k, width, b, wide, idx;
} UnpermuteSize;

static UnpermuteSize unpermute_size(const OpView *view)
{
    return (UnpermuteSize){
        .n = op_rows(view, op_in(view, IN_ORDER)->rows),
        .slots = op_rows(view, op_in(view, IN_ROWS)->rows),
        .k = op_in(view, IN_ORDER)->width,
        .width = op_in(view, IN_ROWS)->width,
        .b = dtype_bytes(op_in(view, IN_ROWS)->dtype, 1),
        .wide = dtype_bytes(op_in(view, IN_WEIGHTS)->dtype, 1),
        .idx = dtype_bytes(DTYPE_INT64, 1),
    };
}

/*
 * Eager: the product keeps its two factors (the weights as a column in slot order), index_add keeps its source rows
 * and the token of each slot, the column's gather keeps the order.
 */
static void unpermute_saved(const OpView *view, OpSaved *ret_saved)
{
    gboolean rows = op_needs_input_grad(view, IN_ROWS);
    gboolean weights = op_needs_input_grad(view, IN_WEIGHTS);
    RowSpace space = op_in(view, IN_ROWS)->rows;
    Dtype dtype = op_in(view, IN_ROWS)->dtype;
    *ret_saved = (OpSaved){0};
    if (!rows && !weights) {
        return;
    }
    ret_saved->inputs = (weights ? 1u << IN_ROWS : 0u) | (view->op->inputs[IN_COUNTS] >= 0 ? 1u << IN_COUNTS : 0u);
    if (!view->op->eager) {
        ret_saved->inputs |= 1u << IN_ORDER | (rows ? 1u << IN_WEIGHTS : 0u);
        return;
    }
    ret_saved->inputs |= weights ? 1u << IN_ORDER : 0u;
    ret_saved->idle_aux =
        1u << op_saved_aux(ret_saved, space, op_in(view, IN_ROWS)->width, dtype); /* for its sizes alone */
    op_saved_aux(ret_saved, space, 1, DTYPE_INT64);
    if (rows) {
        op_saved_aux(ret_saved, space, 1, dtype);
    }
}

static void unpermute_forward_cost(const OpView *view, OpCost *ret_cost)
{
    UnpermuteSize s = unpermute_size(view);
    double n = (double)(s.slots * s.width);
    int64_t rows = s.slots * s.width * s.b;
    int64_t out = s.n * s.width * s.b;
    *ret_cost = (OpCost){0};
    if (!view->op->eager) {
        Work *sum = op_cost_stream(ret_cost, WORK_GATHER, 2 * n, rows + s.slots * (s.wide + s.idx), out);
        sum->m = s.slots;
        sum->n = s.width;
        return;
    }
    op_cost_stream(ret_cost, WORK_GATHER, 0, s.slots * (s.wide + s.idx), s.slots * s.wide); /* weights by slot */
    op_cost_stream(ret_cost, WORK_COPY, 0, s.slots * s.wide, s.slots * s.b);                /* to the compute type */
    op_cost_stream(ret_cost, WORK_STRIDED, n, rows + s.slots * s.b, rows);
    op_cost_stream(ret_cost, WORK_COPY, 0, 0, out);                                  /* zeros */
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, 0, s.slots * s.idx, s.slots * s.idx); /* order / k */
    ret_cost->n_works_to_save = ret_cost->n_works; /* index_add keeps its rows and index before it runs */
    op_cost_stream(ret_cost, WORK_COPY, 0, out, out);                                /* index_add copies its base */
    Work *add = op_cost_stream(ret_cost, WORK_SCATTER_ADD, n, 2 * rows + s.slots * s.idx, rows);
    add->m = s.slots;
    add->n = s.width;
    ret_cost->workspace_bytes = out + s.slots * s.wide;
    if (!op_has_backward(view)) { /* product, column and index are then not kept, yet held here */
        ret_cost->workspace_bytes += rows + s.slots * (s.b + s.idx);
    }
}

/* Gradient of the weights from the product's second factor: row sums, cast, scattered back through a sort. */
static void unpermute_dweights_eager(const UnpermuteSize *s, OpCost *cost)
{
    double n = (double)(s->slots * s->width);
    int64_t rows = s->slots * s->width * s->b;
    op_cost_stream(cost, WORK_ELEMENTWISE, n, 2 * rows, rows);
    Work *sum = op_cost_stream(cost, WORK_REDUCE, n, rows, s->slots * s->b);
    sum->m = s->slots;
    sum->n = s->width;
    op_cost_stream(cost, WORK_COPY, 0, s->slots * s->b, s->slots * s->wide);
    op_cost_stream(cost, WORK_COPY, 0, 0, s->n * s->k * s->wide); /* zeros */
    Work *sort = op_cost_stream(cost, WORK_SORT, 0, s->slots * s->idx, 2 * s->slots * s->idx);
    sort->m = 1;
    sort->n = s->slots;
    op_cost_stream(cost, WORK_GATHER, (double)s->slots, s->slots * (2 * s->idx + 2 * s->wide), s->slots * s->wide);
}

static void unpermute_backward_cost(const OpView *view, OpCost *ret_cost)
{
    UnpermuteSize s = unpermute_size(view);
    gboolean to_rows = op_needs_input_grad(view, IN_ROWS);
    gboolean to_weights = op_needs_input_grad(view, IN_WEIGHTS);
    double n = (double)(s.slots * s.width);
    int64_t rows = s.slots * s.width * s.b;
    *ret_cost = (OpCost){0};
    if (!to_rows && !to_weights) {
        return;
    }
    if (!view->op->eager) {
        int64_t read = rows + s.slots * s.idx + (to_rows ? s.slots * s.wide : 0) + (to_weights ? rows : 0);
        int64_t write = (to_rows ? rows : 0) + (to_weights ? s.n * s.k * s.wide : 0);
        Work *all = op_cost_stream(ret_cost, WORK_GATHER, (to_rows ? n : 0) + (to_weights ? 2 * n : 0), read, write);
        all->m = s.slots;
        all->n = s.width;
        return;
    }
    Work *gather = op_cost_stream(ret_cost, WORK_GATHER, 0, rows + s.slots * s.idx, rows);
    gather->m = s.slots;
    gather->n = s.width;
    gather->k = s.n; /* different source rows: what a cache may hold */
    if (to_rows) {
        op_cost_stream(ret_cost, WORK_STRIDED, n, rows + s.slots * s.b, rows);
    }
    if (to_weights) {
        unpermute_dweights_eager(&s, ret_cost);
    }
    /* Gathered gradient, its two products: when they are made, index_add's source rows have just been let go. */
    ret_cost->workspace_bytes = rows;
}

static gboolean unpermute_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const MoeSample samples[] = {
        {5, 3, 4, 2, 0, FALSE}, {1, 4, 6, 2, 0, FALSE}, {6, 2, 3, 3, 0, FALSE}, {9, 3, 3, 2, 0.7, FALSE}, {6, 3, 4, 2, 1.5, TRUE}};
    int x;
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    RouterTensors t = moe_sample_add(graph, rows, &samples[idx], &x);
    if (samples[idx].padded) {
        int slots = permute_add_padded(graph, "permute", x, t.order, t.counts);
        graph_add_output(graph, unpermute_add_padded(graph, "unpermute", slots, t.weights, t.order, t.counts));
        return TRUE;
    }
    int slots = permute_add(graph, "permute", x, t.order);
    graph_add_output(graph, unpermute_add(graph, "unpermute", slots, t.weights, t.order));
    return TRUE;
}

extern const OpClass op_unpermute;
const OpClass op_unpermute = {
    .id = "unpermute",
    .title = "unpermute",
    .no_grad_inputs = 1u << IN_ORDER | 1u << IN_COUNTS,
    .saved = unpermute_saved,
    .forward_cost = unpermute_forward_cost,
    .backward_cost = unpermute_backward_cost,
    .forward = REAL_KERNELS(unpermute_forward),
    .backward = REAL_KERNELS(unpermute_backward),
    .sample = unpermute_sample,
};
#endif
