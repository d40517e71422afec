#include "models/ops/permute.h"

#include <string.h>

#include "models/moe-tables.h"
#include "models/op-name.h"
#include "models/ops/moe-sample.h"
#include "models/real.h"

enum { IN_X, IN_ORDER, IN_COUNTS };

REAL_DECLARE(permute_forward);
REAL_DECLARE(permute_backward);

gboolean REAL_NAME(permute_forward)(const OpRun *run, GError **error)
{
    int64_t n_choices = op_rows(run->view, op_in(run->view, IN_ORDER)->rows) * op_in(run->view, IN_ORDER)->width;
    int64_t slots = op_rows(run->view, op_out(run->view, 0)->rows);
    int64_t width = op_in(run->view, IN_X)->width;
    int64_t k = op_in(run->view, IN_ORDER)->width;
    const real *x = run->in[IN_X]->data;
    real *y = run->out[0]->data;
    g_autofree int64_t *slot_of = permute_slot_of(run->in[IN_ORDER], run->in[IN_COUNTS], slots);
    (void)error;
    if (run->in[IN_COUNTS] != NULL) { /* what no row fills */
        memset(y, 0, (size_t)(slots * width) * sizeof *y);
    }
    for (int64_t i = 0; i < n_choices; i++) {
        if (slot_of[i] >= 0) {
            memcpy(y + slot_of[i] * width, x + i / k * width, (size_t)width * sizeof *y);
        }
    }
    if (run->aux[0] != NULL) {
        permute_tokens(slot_of, n_choices, k, slots, run->aux[0]->data);
    }
    op_count(run, 0, slots * (width + 1), slots * width); /* a masked load counts as one */
    return TRUE;
}

gboolean REAL_NAME(permute_backward)(const OpRun *run, GError **error)
{
    int64_t n = op_rows(run->view, op_in(run->view, IN_ORDER)->rows);
    int64_t slots = op_rows(run->view, op_out(run->view, 0)->rows);
    int64_t width = op_in(run->view, IN_X)->width;
    int64_t k = op_in(run->view, IN_ORDER)->width;
    (void)error;
    if (run->din[IN_X] == NULL) {
        return TRUE;
    }
    real *dx = run->din[IN_X]->data;
    memset(dx, 0, (size_t)(n * width) * sizeof *dx);
    op_count(run, 0, 0, n * width);
    if (run->dout[0] == NULL) {
        return TRUE;
    }
    const real *dy = run->dout[0]->data;
    if (run->aux[0] != NULL) { /* a chain's index_add, by slot */
        const int64_t *token = run->aux[0]->data;
        for (int64_t i = 0; i < slots * width; i++) {
            if (token[i / width] >= 0) {
                dx[token[i / width] * width + i % width] += dy[i];
            }
        }
        return TRUE;
    }
    g_autofree int64_t *slot_of = permute_slot_of(run->in[IN_ORDER], run->in[IN_COUNTS], slots);
    for (int64_t i = 0; i < n * k; i++) { /* by token, then by choice */
        real *row = dx + i / k * width;
        for (int64_t c = 0; slot_of[i] >= 0 && c < width; c++) {
            row[c] += dy[slot_of[i] * width + c];
        }
    }
    op_count(run, (double)(slots * width), slots * (width + 1), 0);
    return TRUE;
}

#if REAL_HAS_CLASS
void permute_tokens(const int64_t *slot_of, int64_t n_choices, int64_t k, int64_t slots, int64_t *ret_token)
{
    for (int64_t s = 0; s < slots; s++) {
        ret_token[s] = -1;
    }
    for (int64_t i = 0; i < n_choices; i++) {
        if (slot_of[i] >= 0) {
            ret_token[slot_of[i]] = i / k;
        }
    }
}

int64_t *permute_slot_of(const Tensor *order, const Tensor *counts, int64_t slots)
{
    int64_t n_choices = tensor_numel(order);
    if (counts == NULL) {
        return moe_slot_of(order->data, slots, n_choices);
    }
    int64_t experts = tensor_numel(counts);
    return moe_padded_slot_of(order->data, counts->data, experts, slots / experts, n_choices);
}

static int permute_add_all(Graph *graph, const char *name, int x, int order, int counts)
{
    PermuteAttr attr = {.top_k = graph_tensor(graph, order)->width};
    GraphTensor *in = graph_tensor(graph, x);
    int64_t width = in->width;
    RowSpace slots = row_space_kind(in->rows) == ROWS_ARRIVED ? ROWS_RECEIVED : ROWS_SLOTS; /* made where the tokens arrived, or before */
    int rows = graph_add_tensor(graph, op_name(name, "rows").text, slots, width, in->dtype);
    graph_tensor(graph, rows)->tag = MEM_DISPATCH;
    Op *op = op_add(graph, OP_permute, name, &attr, sizeof attr);
    op_input(op, x);
    op_input(op, order);
    op_input(op, counts);
    op_output(graph, op, rows);
    return rows;
}

int permute_add(Graph *graph, const char *name, int x, int order)
{
    return permute_add_all(graph, name, x, order, -1);
}

int permute_add_padded(Graph *graph, const char *name, int x, int order, int counts)
{
    return permute_add_all(graph, name, x, order, counts);
}

/* Sizes: tokens, slots, row width; bytes of an element and of an index. */
typedef struct PermuteSize {
    int64_t n, slots, width, b, idx;
} PermuteSize;

static PermuteSize permute_size(const OpView *view)
{
    return (PermuteSize){
        .n = op_rows(view, op_in(view, IN_ORDER)->rows),
        .slots = op_rows(view, op_out(view, 0)->rows),
        .width = op_in(view, 0)->width,
        .b = dtype_bytes(op_in(view, 0)->dtype, 1),
        .idx = dtype_bytes(DTYPE_INT64, 1),
    };
}

/* Eager: the token of each slot (order / k), which index_select keeps; fused: the order itself. */
static void permute_saved(const OpView *view, OpSaved *ret_saved)
{
    *ret_saved = (OpSaved){0};
    if (!op_has_backward(view)) {
        return;
    }
    if (view->op->eager) {
        op_saved_aux(ret_saved, op_out(view, 0)->rows, 1, DTYPE_INT64);
    } else {
        ret_saved->inputs = 1u << IN_ORDER | (view->op->inputs[IN_COUNTS] >= 0 ? 1u << IN_COUNTS : 0u);
    }
}

static void permute_forward_cost(const OpView *view, OpCost *ret_cost)
{
    PermuteSize s = permute_size(view);
    int64_t rows = s.slots * s.width * s.b;
    *ret_cost = (OpCost){0};
    if (view->op->eager) {
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, 0, s.slots * s.idx, s.slots * s.idx); /* order / k */
    }
    Work *gather = op_cost_stream(ret_cost, WORK_GATHER, 0, rows + s.slots * s.idx, rows);
    gather->m = s.slots;
    gather->n = s.width;
    gather->k = s.n; /* different source rows: what a cache may hold */
}

/* Sum of the slots of a token. Eager: index_add of all slots into zeros; fused: one pass over the tokens. */
static void permute_backward_cost(const OpView *view, OpCost *ret_cost)
{
    PermuteSize s = permute_size(view);
    int64_t rows = s.slots * s.width * s.b;
    int64_t tokens = s.n * s.width * s.b;
    double adds = (double)(s.slots * s.width);
    *ret_cost = (OpCost){0};
    if (!op_needs_input_grad(view, 0)) {
        return;
    }
    if (view->op->eager) {
        op_cost_stream(ret_cost, WORK_COPY, 0, 0, tokens); /* zeros */
        Work *add = op_cost_stream(ret_cost, WORK_SCATTER_ADD, adds, 2 * rows + s.slots * s.idx, rows);
        add->m = s.slots;
        add->n = s.width;
    } else {
        Work *sum = op_cost_stream(ret_cost, WORK_GATHER, adds, rows + s.slots * s.idx, tokens);
        sum->m = s.slots;
        sum->n = s.width;
    }
}

static gboolean permute_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const MoeSample samples[] = {
        {5, 3, 4, 2, 0, FALSE}, {1, 4, 6, 2, 0, FALSE}, {7, 2, 3, 3, 0, FALSE}, {8, 3, 2, 1, 0.7, FALSE}, {6, 3, 4, 2, 1.5, TRUE}};
    int x;
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    RouterTensors t = moe_sample_add(graph, rows, &samples[idx], &x);
    graph_add_output(graph, samples[idx].padded ? permute_add_padded(graph, "permute", x, t.order, t.counts)
                                                : permute_add(graph, "permute", x, t.order));
    graph_add_output(graph, t.weights);
    return TRUE;
}

extern const OpClass op_permute;
const OpClass op_permute = {
    .id = "permute",
    .title = "permute",
    .no_grad_inputs = 1u << IN_ORDER | 1u << IN_COUNTS,
    .saved = permute_saved,
    .forward_cost = permute_forward_cost,
    .backward_cost = permute_backward_cost,
    .forward = REAL_KERNELS(permute_forward),
    .backward = REAL_KERNELS(permute_backward),
    .sample = permute_sample,
};
#endif
