#include "models/ops/rope.h"

#include <math.h>
#include <string.h>

#include "models/op-name.h"
#include "models/op.h"
#include "models/real.h"
#include "models/sequences.h"
#include "models/values.h"

REAL_DECLARE(rope_forward);
REAL_DECLARE(rope_backward);

enum { IN_X, IN_POSITIONS };

/* How pair i of a head turns: its angle is scale x position, and which of a planar position it takes. */
static double pair_scale(const RopeAttr *attr, int64_t pair)
{
    double step = attr->planar ? 4 * (double)(pair / 2) : 2 * (double)pair;
    return pow(attr->base, -step / (double)attr->rotary_dim);
}

static double position_at(const OpRun *run, int64_t row, int64_t start, int64_t pair)
{
    const RopeAttr *attr = run->view->op->attr;
    if (run->in[IN_POSITIONS] == NULL) {
        return (double)(row - start);
    }
    if (!attr->planar) {
        return tensor_get(run->in[IN_POSITIONS], row);
    }
    return tensor_get(run->in[IN_POSITIONS], 2 * row + (pair % 2 == 0 ? 1 : 0)); /* even pairs: the column */
}

/* Rotates one row by +angle or -angle, whose cosines and sines are given. */
static void rotate_row(const RopeAttr *attr, const real *cosines, const real *sines, int sign, const real *x, real *y)
{
    int64_t pairs = attr->rotary_dim / 2;
    int64_t next = attr->layout == ROPE_HALF ? pairs : 1;
    int64_t step = attr->layout == ROPE_HALF ? 1 : 2;
    memcpy(y, x, (size_t)(attr->heads * attr->head_dim) * sizeof *y);
    for (int64_t i = 0; i < pairs; i++) {
        real c = cosines[i];
        real s = (real)sign * sines[i];
        for (int64_t h = 0; h < attr->heads; h++) {
            int64_t at = h * attr->head_dim + attr->offset + i * step;
            y[at] = x[at] * c - x[at + next] * s;
            y[at + next] = x[at] * s + x[at + next] * c;
        }
    }
}

static void rotate(const OpRun *run, int sign, const real *x, real *y)
{
    const RopeAttr *attr = run->view->op->attr;
    const OpView *view = run->view;
    RowSpace space = op_in(view, IN_X)->rows;
    int64_t pairs = attr->rotary_dim / 2;
    int64_t width = attr->heads * attr->head_dim;
    int64_t row_bytes = width * op_in_elem_bytes(view, IN_X);
    int64_t position_bytes = view->op->inputs[IN_POSITIONS] >= 0
                                 ? op_in_elem_bytes(view, IN_POSITIONS) * op_in(view, IN_POSITIONS)->width
                                 : 0;
    g_autofree double *scales = g_new(double, (gsize)pairs);
    g_autofree real *turn = g_new(real, (gsize)(2 * pairs));
    gboolean has_table = run->aux[0] != NULL && run->in[IN_POSITIONS] == NULL; /* by position in its sequence */
    for (int64_t i = 0; i < pairs; i++) {
        scales[i] = pair_scale(attr, i);
    }
    for (int64_t q = 0; q < sequences_count(view->rows, space); q++) {
        int64_t start = sequences_start(view->rows, space, q);
        for (int64_t t = start; t < sequences_start(view->rows, space, q + 1); t++) {
            real *c = has_table ? values_aux(run, 0) + (t - start) * pairs : turn;
            real *s = has_table ? values_aux(run, 1) + (t - start) * pairs : turn + pairs;
            for (int64_t i = 0; (sign > 0 || !has_table) && i < pairs;
                 i++) { /* angles are double in either precision */
                double angle = position_at(run, t, start, i) * scales[i];
                c[i] = (real)cos(angle);
                s[i] = (real)sin(angle);
            }
            rotate_row(attr, c, s, sign, x + t * width, y + t * width);
            op_count_bytes(run, (double)(pairs * (3 + 6 * attr->heads)), row_bytes + position_bytes, row_bytes);
        }
    }
}

gboolean REAL_NAME(rope_forward)(const OpRun *run, GError **error)
{
    (void)error;
    rotate(run, 1, values_in(run, IN_X), values_out(run, 0));
    return TRUE;
}

gboolean REAL_NAME(rope_backward)(const OpRun *run, GError **error)
{
    (void)error;
    if (run->dout[0] == NULL || run->din[IN_X] == NULL) {
        values_zero_gradients(run);
    } else {
        rotate(run, -1, values_dout(run, 0), values_din(run, IN_X));
    }
    return TRUE;
}

#if REAL_HAS_CLASS
int rope_add(Graph *graph, const char *name, int x, int positions, const RopeAttr *attr)
{
    const GraphTensor in = *graph_tensor(graph, x);
    g_assert(attr->heads * attr->head_dim == in.width && attr->rotary_dim > 0 && attr->rotary_dim % 2 == 0);
    g_assert(attr->offset >= 0 && attr->offset + attr->rotary_dim <= attr->head_dim && attr->layout != ROPE_NONE);
    g_assert(!attr->planar || (positions >= 0 && attr->layout == ROPE_INTERLEAVED));
    int y = graph_add_tensor(graph, name, in.rows, in.width, in.dtype);
    Op *op = op_add(graph, OP_rope, name, attr, sizeof *attr);
    op_input(op, x);
    op_input(op, positions);
    op_output(graph, op, y);
    return y;
}

static void rope_saved(const OpView *view, OpSaved *ret_saved)
{
    const RopeAttr *attr = view->op->attr;
    if (!op_has_backward(view)) {
        return;
    }
    ret_saved->inputs = view->op->inputs[1] >= 0 ? 2 : 0;
    if (view->op->eager && op_needs_input_grad(view, 0)) {
        int64_t angles = sequences_longest(view->rows, op_in(view, 0)->rows) * attr->rotary_dim / 2;
        op_saved_aux(ret_saved, ROWS_ONE, angles, op_in(view, 0)->dtype); /* cosines */
        op_saved_aux(ret_saved, ROWS_ONE, angles, op_in(view, 0)->dtype); /* sines */
        ret_saved->idle_aux = view->op->inputs[1] >= 0 ? 3 : 0;           /* given positions are kept, and turn again */
    }
}

/* Angle, cosine and sine per row and pair 3; rotation per pair of a head 6. */
static double rope_flops(const OpView *view)
{
    const RopeAttr *attr = view->op->attr;
    double pairs = (double)op_rows(view, op_in(view, 0)->rows) * (double)(attr->rotary_dim / 2);
    return pairs * (3 + 6 * (double)attr->heads);
}

static void fused_cost(const OpView *view, OpCost *ret_cost)
{
    int64_t positions = view->op->inputs[1] >= 0 ? op_in_bytes(view, 1) : 0;
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, rope_flops(view), op_in_bytes(view, 0) + positions,
                   op_out_bytes(view, 0));
}

/* What sizes the eager chain: the tensor and half of its rotated part. */
typedef struct RopeSize {
    int64_t full, half; /* bytes */
    int64_t n;          /* numbers in a half */
    int64_t angles;     /* tokens of a sequence x pairs */
    int64_t table;      /* bytes of the cosines */
    int64_t length, pairs;
} RopeSize;

static RopeSize rope_size(const OpView *view)
{
    const RopeAttr *attr = view->op->attr;
    int64_t elem = op_in_elem_bytes(view, 0);
    RopeSize s = {.full = op_in_bytes(view, 0), .pairs = attr->rotary_dim / 2};
    s.length = sequences_longest(view->rows, op_in(view, 0)->rows);
    s.n = op_rows(view, op_in(view, 0)->rows) * attr->heads * s.pairs;
    s.half = elem * s.n;
    s.angles = s.length * s.pairs;
    s.table = elem * s.angles;
    return s;
}

/* Positions, frequencies, their outer product in fp32, its cosine and sine and their casts. */
static void eager_table_cost(const RopeSize *s, OpCost *ret_cost)
{
    int64_t freq = 4 * s->pairs;
    double p = (double)s->pairs;
    double a = (double)s->angles;
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, 0, 0, 4 * s->length);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, 0, 0, 2 * freq);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, p, 2 * freq, freq);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, p, freq, freq)->n_launches = 3; /* power, reciprocal, product */
    op_cost_stream(ret_cost, WORK_STRIDED, a, 4 * s->length + freq, 4 * s->angles);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, a, 4 * s->angles, 4 * s->angles)->n_launches = 2;
    op_cost_stream(ret_cost, WORK_COPY, 0, 4 * s->angles, s->table)->n_launches = 2;
}

/* cat([x1 c - x2 s, x2 c + x1 s]) over views of [sequence, head, token, number]. */
static void rope_forward_cost(const OpView *view, OpCost *ret_cost)
{
    if (!view->op->eager) {
        fused_cost(view, ret_cost);
        return;
    }
    RopeSize s = rope_size(view);
    double n = (double)s.n;
    eager_table_cost(&s, ret_cost);
    op_cost_stream(ret_cost, WORK_STRIDED, n, s.half + s.table, s.half)->n_launches = 4;
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, n, 2 * s.half, s.half)->n_launches = 2;
    op_cost_stream(ret_cost, WORK_CONCAT, 0, s.full, s.full);
    ret_cost->workspace_bytes = 2 * s.half;
}

/*
 * Minus, four products, two sums; every slice's gradient is padded with zeros to the whole tensor, and those are
 * added. The result lies head by head: the layer before wants it token by token.
 */
static void rope_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const RopeAttr *attr = view->op->attr;
    if (!op_needs_input_grad(view, 0)) {
        return;
    }
    if (!view->op->eager) {
        fused_cost(view, ret_cost);
        return;
    }
    RopeSize s = rope_size(view);
    double n = (double)s.n;
    gboolean partial = attr->rotary_dim < attr->head_dim;
    int64_t rest = s.full - 2 * s.half;
    op_cost_stream(ret_cost, WORK_STRIDED, n, s.half, s.half);
    op_cost_stream(ret_cost, WORK_STRIDED, n, s.half + s.table, s.half)->n_launches = 4;
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, n, 2 * s.half, s.half)->n_launches = 2;
    op_cost_stream(ret_cost, WORK_COPY, 0, 0, s.full)->n_launches = partial ? 3 : 2;
    op_cost_stream(ret_cost, WORK_STRIDED, 0, s.half, s.half)->n_launches = 2;
    if (partial) {
        op_cost_stream(ret_cost, WORK_STRIDED, 0, rest, rest);
    }
    double full = (double)graph_tensor_numel(op_in(view, 0), view->rows);
    op_cost_stream(ret_cost, WORK_ELEMENTWISE, full, 2 * s.full, s.full)->n_launches = partial ? 2 : 1;
    if (attr->heads > 1) {
        op_cost_stream(ret_cost, WORK_STRIDED, 0, s.full, s.full);
    }
    ret_cost->workspace_bytes = s.full + s.half;
}

static const struct {
    int64_t rows, seq_len;
    gboolean positions;
    RopeAttr attr;
} samples[] = {
    {6, 3, FALSE, {2, 8, 0, 8, 10000, ROPE_HALF, FALSE}},
    {5, 5, FALSE, {3, 7, 3, 4, 100, ROPE_INTERLEAVED, FALSE}},
    {1, 1, TRUE, {1, 2, 0, 2, 10000, ROPE_HALF, FALSE}},
    {4, 4, TRUE, {2, 8, 0, 8, 50, ROPE_INTERLEAVED, TRUE}},
};

static gboolean rope_sample(int idx, Graph *graph, RowCounts *rows)
{
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    const RopeAttr *attr = &samples[idx].attr;
    rows->rows[ROWS_TOKENS] = samples[idx].rows;
    rows->seq_len = samples[idx].seq_len;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, attr->heads * attr->head_dim, graph->compute, TRUE);
    int positions = -1;
    if (samples[idx].positions) {
        positions = graph_add_input(graph, "positions", ROWS_TOKENS, attr->planar ? 2 : 1,
                                    attr->planar ? DTYPE_FP32 : DTYPE_INT64, FALSE);
    }
    graph_add_output(graph, rope_add(graph, "rope", x, positions, attr));
    return TRUE;
}

static void rope_sample_fill(int idx, const OpView *view, Tensor *const *in, Tensor *const *param)
{
    (void)view;
    (void)param;
    for (int64_t i = 0; samples[idx].positions && i < tensor_numel(in[IN_POSITIONS]); i++) {
        tensor_set(in[IN_POSITIONS], i, (double)(3 + 5 * i % 7));
    }
}

extern const OpClass op_rope;
const OpClass op_rope = {
    .id = "rope",
    .title = "RoPE",
    .no_grad_inputs = 2,
    .saved = rope_saved,
    .forward_cost = rope_forward_cost,
    .backward_cost = rope_backward_cost,
    .forward = REAL_KERNELS(rope_forward),
    .backward = REAL_KERNELS(rope_backward),
    .sample = rope_sample,
    .sample_fill = rope_sample_fill,
};
#endif
