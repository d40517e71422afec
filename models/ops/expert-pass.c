#include "models/ops/expert-pass.h"

#include <string.h>

#include "models/matmul.h"
#include "models/op-name.h"
#include "models/ops/grouped-gemm.h"
#include "models/ops/moe-sample.h"
#include "models/real.h"

enum { IN_X, IN_WEIGHTS, IN_ORDER };

/* Rows of a tile: enough for the product to run at full rate, few enough for the tile to stay in cache. */
enum { TILE = 128 };

REAL_DECLARE(expert_pass_forward);
REAL_DECLARE(expert_pass_backward);

/* Sizes of a pass and the router's order of slots. */
typedef struct Pass {
    const OpRun *run;
    int64_t n, k, experts, in, out;
    const int64_t *order;
} Pass;

/* A tile of one expert's slots. */
typedef struct Tile {
    int64_t first, n; /* slots */
    int64_t expert;
    int64_t left; /* slots of the expert behind this tile */
} Tile;

static Pass pass_of(const OpRun *run)
{
    const ExpertPassAttr *attr = run->view->op->attr;
    return (Pass){
        .run = run,
        .n = op_rows(run->view, ROWS_TOKENS),
        .k = attr->top_k,
        .experts = attr->experts,
        .in = op_in(run->view, IN_X)->width,
        .out = op_out(run->view, 0)->width,
        .order = run->in[IN_ORDER]->data,
    };
}

/* The next tile (a first one has expert -1 and no slots), or FALSE. */
static gboolean tile_next(const Pass *pass, Tile *tile)
{
    tile->first += tile->n;
    while (tile->left == 0) {
        if (tile->expert + 1 >= pass->experts) {
            return FALSE;
        }
        tile->expert++;
        tile->left = grouped_gemm_rows(pass->run->view, pass->experts, tile->expert);
    }
    tile->n = MIN(tile->left, TILE);
    tile->left -= tile->n;
    return TRUE;
}

/* Whether this is the first tile of its expert. */
static gboolean tile_starts(const Pass *pass, const Tile *tile)
{
    return tile->left + tile->n == grouped_gemm_rows(pass->run->view, pass->experts, tile->expert);
}

static int64_t tile_token(const Pass *pass, const Tile *tile, int64_t row)
{
    return pass->order[tile->first + row] / pass->k;
}

/* Copies the tokens' rows of a tile, times their weights unless NULL. */
static void tile_gather(const Pass *pass, const Tile *tile, const real *from, int64_t width, const real *weights,
                        real *to)
{
    for (int64_t r = 0; r < tile->n; r++) {
        const real *row = from + tile_token(pass, tile, r) * width;
        real scale = weights != NULL ? weights[pass->order[tile->first + r]] : 1;
        for (int64_t c = 0; c < width; c++) {
            to[r * width + c] = scale * row[c];
        }
    }
    op_count(pass->run, weights != NULL ? (double)(tile->n * width) : 0,
             tile->n * width + (weights != NULL ? tile->n : 0), 0);
}

/* Adds the weighted rows of a tile to their tokens. */
static void tile_scatter(const Pass *pass, const Tile *tile, const real *from, int64_t width, const real *weights,
                         real *to)
{
    for (int64_t r = 0; r < tile->n; r++) {
        real *row = to + tile_token(pass, tile, r) * width;
        real scale = weights[pass->order[tile->first + r]];
        for (int64_t c = 0; c < width; c++) {
            row[c] += scale * from[r * width + c];
        }
    }
    op_count(pass->run, 2 * (double)(tile->n * width), tile->n * (width + 1), tile->n * width);
}

/* Counts a product of a tile with its expert's matrix, which is read with the first tile. */
static void tile_count_product(const Pass *pass, const Tile *tile)
{
    op_count(pass->run, 2 * (double)tile->n * (double)pass->in * (double)pass->out,
             tile->n + (tile_starts(pass, tile) ? pass->in * pass->out : 0), 0);
}

gboolean REAL_NAME(expert_pass_forward)(const OpRun *run, GError **error)
{
    Pass pass = pass_of(run);
    g_autofree real *rows = g_new(real, (gsize)(TILE * (pass.in + pass.out)));
    real *results = rows + TILE * pass.in;
    const real *w = run->param[0]->data;
    real *y = run->out[0]->data;
    Tile tile = {.expert = -1};
    (void)error;
    memset(y, 0, (size_t)(pass.n * pass.out) * sizeof *y);
    op_count(run, 0, 0, pass.n * pass.out);
    while (tile_next(&pass, &tile)) {
        Matmul shape = {.m = tile.n, .n = pass.out, .k = pass.in, .trans_b = TRUE};
        tile_gather(&pass, &tile, run->in[IN_X]->data, pass.in, NULL, rows);
        REAL_NAME(matmul_dense)(shape, rows, w + tile.expert * pass.out * pass.in, results);
        tile_count_product(&pass, &tile);
        tile_scatter(&pass, &tile, results, pass.out, run->in[IN_WEIGHTS]->data, y);
    }
    return TRUE;
}

/* Gradient of the choices' weights: U . x, row by row. */
static void tile_dweights(const Pass *pass, const Tile *tile, const real *u, real *dweights)
{
    const real *x = pass->run->in[IN_X]->data;
    for (int64_t r = 0; r < tile->n; r++) {
        const real *row = x + tile_token(pass, tile, r) * pass->in;
        real dot = 0;
        for (int64_t c = 0; c < pass->in; c++) {
            dot += u[r * pass->in + c] * row[c];
        }
        dweights[pass->order[tile->first + r]] = dot;
    }
    op_count(pass->run, 2 * (double)(tile->n * pass->in), tile->n * pass->in, 0);
}

/* Gradients of a tile's tokens and weights. grads, u: scratch. */
static void tile_backward_inputs(const Pass *pass, const Tile *tile, const real *dy, real *grads, real *u)
{
    const OpRun *run = pass->run;
    Matmul shape = {.m = tile->n, .n = pass->in, .k = pass->out};
    tile_gather(pass, tile, dy, pass->out, NULL, grads);
    REAL_NAME(matmul_dense)(shape, grads, (const real *)run->param[0]->data + tile->expert * pass->out * pass->in, u);
    tile_count_product(pass, tile);
    if (run->din[IN_WEIGHTS] != NULL) {
        tile_dweights(pass, tile, u, run->din[IN_WEIGHTS]->data);
    }
    if (run->din[IN_X] != NULL) {
        tile_scatter(pass, tile, u, pass->in, run->in[IN_WEIGHTS]->data, run->din[IN_X]->data);
    }
}

/* Gradient of the expert's matrix, which stays on chip over its tiles. grads, rows: scratch. */
static void tile_backward_matrix(const Pass *pass, const Tile *tile, const real *dy, real *grads, real *rows)
{
    const OpRun *run = pass->run;
    Matmul shape = {.m = pass->out,
                    .n = pass->in,
                    .k = tile->n,
                    .trans_a = TRUE,
                    .lda = pass->out,
                    .ldb = pass->in,
                    .ldc = pass->in,
                    .alpha = 1,
                    .beta = 1};
    tile_gather(pass, tile, dy, pass->out, run->in[IN_WEIGHTS]->data, grads);
    tile_gather(pass, tile, run->in[IN_X]->data, pass->in, NULL, rows);
    REAL_NAME(matmul)(&shape, grads, rows, (real *)run->dparam[0]->data + tile->expert * pass->out * pass->in);
    op_count(run, 2 * (double)tile->n * (double)pass->in * (double)pass->out, tile->n, 0);
}

/* Starts a gradient at zero: tokens and choices without slots, experts without rows. */
static void clear(const OpRun *run, Tensor *grad)
{
    if (grad != NULL) {
        memset(grad->data, 0, (size_t)tensor_numel(grad) * sizeof(real));
        op_count(run, 0, 0, tensor_numel(grad));
    }
}

gboolean REAL_NAME(expert_pass_backward)(const OpRun *run, GError **error)
{
    Pass pass = pass_of(run);
    g_autofree real *scratch = g_new(real, (gsize)(TILE * (pass.in + pass.out)));
    g_autofree real *zero = run->dout[0] == NULL ? g_new0(real, (gsize)(pass.n * pass.out)) : NULL;
    const real *dy = zero != NULL ? zero : run->dout[0]->data;
    Tile tile = {.expert = -1};
    (void)error;
    clear(run, run->din[IN_X]);
    clear(run, run->din[IN_WEIGHTS]);
    clear(run, run->dparam[0]);
    while (tile_next(&pass, &tile)) {
        if (run->din[IN_X] != NULL || run->din[IN_WEIGHTS] != NULL) {
            tile_backward_inputs(&pass, &tile, dy, scratch, scratch + TILE * pass.out);
        }
        if (run->dparam[0] != NULL) {
            tile_backward_matrix(&pass, &tile, dy, scratch, scratch + TILE * pass.out);
        }
    }
    return TRUE;
}

#if REAL_HAS_CLASS
int expert_pass_add(Graph *graph, const char *name, int x, int weights, int order, int64_t out, int64_t experts)
{
    ExpertPassAttr attr = {.experts = experts, .top_k = graph_tensor(graph, order)->width};
    int64_t in = graph_tensor(graph, x)->width;
    Dtype dtype = graph_tensor(graph, x)->dtype;
    g_assert(graph->ep_size <= 1);
    int weight = graph_add_param(graph, op_name(name, "weight").text, PARAM_MATRIX, experts, out, in);
    graph_param(graph, weight)->split = PARAM_EXPERT;
    int y = graph_add_tensor(graph, op_name(name, "out").text, ROWS_TOKENS, out, dtype);
    Op *op = op_add(graph, OP_expert_pass, name, &attr, sizeof attr);
    op_input(op, x);
    op_input(op, weights);
    op_input(op, order);
    op_param(graph, op, weight);
    op_output(graph, op, y);
    return y;
}

static void expert_pass_saved(const OpView *view, OpSaved *ret_saved)
{
    gboolean to_x = op_needs_input_grad(view, IN_X);
    gboolean to_weights = op_needs_input_grad(view, IN_WEIGHTS);
    gboolean to_matrix = op_trains_param(view, 0);
    *ret_saved = (OpSaved){0};
    if (op_has_backward(view)) {
        ret_saved->inputs =
            1u << IN_ORDER | (to_weights || to_matrix ? 1u << IN_X : 0u) | (to_x || to_matrix ? 1u << IN_WEIGHTS : 0u);
    }
}

/* Bytes of an element of the rows, of a weight and of an index, and the sizes of the pass. */
typedef struct PassSize {
    int64_t n, slots, k, experts, busy, in, out;
    int64_t b, wide, idx;
} PassSize;

static PassSize pass_size(const OpView *view)
{
    const ExpertPassAttr *attr = view->op->attr;
    return (PassSize){
        .n = op_rows(view, ROWS_TOKENS),
        .slots = op_rows(view, ROWS_SLOTS),
        .k = attr->top_k,
        .experts = attr->experts,
        .busy = grouped_gemm_busy(view, attr->experts),
        .in = op_in(view, IN_X)->width,
        .out = op_out(view, 0)->width,
        .b = dtype_bytes(op_in(view, IN_X)->dtype, 1),
        .wide = dtype_bytes(op_in(view, IN_WEIGHTS)->dtype, 1),
        .idx = dtype_bytes(DTYPE_INT64, 1),
    };
}

/* A product of all slots with their experts' matrices. Adding to tokens reads and writes a row for each slot. */
static Work *pass_product(const OpView *view, const PassSize *s, OpCost *cost, int64_t n, int64_t k)
{
    Work *work = op_cost_gemm(cost, WORK_GROUPED_GEMM, op_in(view, IN_X)->dtype, s->slots, n, k);
    work->read_bytes = (s->slots * k + s->busy * n * k) * s->b + s->slots * s->idx;
    work->write_bytes = 0;
    work->n_groups = s->experts;
    work->group_rows = op_expert_rows(view);
    return work;
}

static void pass_add_to_tokens(const PassSize *s, Work *work, int64_t width)
{
    work->flops += 2 * (double)(s->slots * width);
    work->read_bytes += s->slots * (width * s->b + s->wide);
    work->write_bytes += (s->slots + s->n) * width * s->b;
}

static void expert_pass_forward_cost(const OpView *view, OpCost *ret_cost)
{
    PassSize s = pass_size(view);
    *ret_cost = (OpCost){0};
    pass_add_to_tokens(&s, pass_product(view, &s, ret_cost, s.out, s.in), s.out);
}

static void expert_pass_backward_cost(const OpView *view, OpCost *ret_cost)
{
    PassSize s = pass_size(view);
    gboolean to_x = op_needs_input_grad(view, IN_X);
    gboolean to_weights = op_needs_input_grad(view, IN_WEIGHTS);
    *ret_cost = (OpCost){0};
    if (to_x || to_weights) {
        Work *work = pass_product(view, &s, ret_cost, s.in, s.out);
        if (to_x) {
            pass_add_to_tokens(&s, work, s.in);
        }
        if (to_weights) {
            work->flops += 2 * (double)(s.slots * s.in);
            work->read_bytes += s.slots * s.in * s.b;
            work->write_bytes += s.n * s.k * s.wide;
        }
    }
    if (op_trains_param(view, 0)) {
        Work *dw = op_cost_gemm(ret_cost, WORK_GROUPED_GEMM_WGRAD, op_in(view, IN_X)->dtype, s.out, s.in, s.slots);
        dw->flops += (double)(s.slots * s.out);
        dw->read_bytes = s.slots * ((s.in + s.out) * s.b + s.wide + s.idx);
        dw->write_bytes = s.experts * s.out * s.in * s.b;
        dw->n_groups = s.experts;
        dw->group_rows = op_expert_rows(view);
    }
}

static gboolean expert_pass_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const MoeSample samples[] = {{5, 3, 4, 2, 0}, {1, 4, 6, 2, 0}, {7, 2, 3, 3, 0}, {9, 3, 3, 2, 0.7}};
    int x;
    if (idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    RouterTensors t = moe_sample_add(graph, rows, &samples[idx], &x);
    graph_add_output(graph, expert_pass_add(graph, "experts", x, t.weights, t.order, 3 + idx, samples[idx].experts));
    return TRUE;
}

extern const OpClass op_expert_pass;
const OpClass op_expert_pass = {
    .id = "expert_pass",
    .title = "permute, grouped GEMM and unpermute as one",
    .keep = OP_KEEP_GROUPED_MATMUL,
    .no_grad_inputs = 1u << IN_ORDER,
    .saved = expert_pass_saved,
    .forward_cost = expert_pass_forward_cost,
    .backward_cost = expert_pass_backward_cost,
    .forward = REAL_KERNELS(expert_pass_forward),
    .backward = REAL_KERNELS(expert_pass_backward),
    .sample = expert_pass_sample,
};
#endif
