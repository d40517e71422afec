#include "models/ops/patch-embed.h"

#include <string.h>

#include "models/matmul.h"
#include "models/op-name.h"
#include "models/op.h"
#include "models/real-math.h"
#include "models/real.h"
#include "sim/base/error.h"

REAL_DECLARE(patch_embed_forward);
REAL_DECLARE(patch_embed_backward);

/* The four table rows around a place, and their shares. */
typedef struct TableCorners {
    int64_t rows[4];
    real shares[4];
} TableCorners;

static TableCorners table_corners(int64_t edge, const real *place)
{
    real last = (real)(edge - 1);
    real y = real_min(real_max(place[0], 0), last), x = real_min(real_max(place[1], 0), last);
    int64_t y0 = (int64_t)y, x0 = (int64_t)x;
    int64_t y1 = MIN(y0 + 1, edge - 1), x1 = MIN(x0 + 1, edge - 1);
    real fy = y - (real)y0, fx = x - (real)x0;
    return (TableCorners){
        {y0 * edge + x0, y0 * edge + x1, y1 * edge + x0, y1 * edge + x1},
        {(1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx},
    };
}

static gboolean patch_embed_check(const OpRun *run, GError **error)
{
    const real *grid = real_data_const(run->in[1]);
    int64_t n = tensor_numel(run->in[1]);
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(grid[i])) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                        "%s: place of patch %" G_GINT64_FORMAT " is not a number", run->view->op->name, i / 2);
            return FALSE;
        }
    }
    return TRUE;
}

gboolean REAL_NAME(patch_embed_forward)(const OpRun *run, GError **error)
{
    const PatchEmbedAttr *attr = run->view->op->attr;
    const real *x = real_data_const(run->in[0]), *grid = real_data_const(run->in[1]);
    const real *table = real_data_const(run->param[1]);
    int64_t rows = op_rows(run->view, op_in(run->view, 0)->rows), h = attr->hidden;
    real *y = real_data(run->out[0]);
    if (!patch_embed_check(run, error)) {
        return FALSE;
    }
    Matmul product = {.m = rows, .n = h, .k = attr->patch_width, .trans_b = TRUE};
    REAL_NAME(matmul_dense)(product, x, real_data_const(run->param[0]), y);
    op_count(run, 2.0 * (double)(rows * h * attr->patch_width), (rows + h) * attr->patch_width, rows * h);
    for (int64_t t = 0; t < rows; t++) {
        TableCorners corners = table_corners(attr->table, grid + 2 * t);
        for (int64_t d = 0; d < h; d++) {
            real sum = 0;
            for (int c = 0; c < 4; c++) {
                sum += corners.shares[c] * table[corners.rows[c] * h + d];
            }
            y[t * h + d] += sum;
        }
    }
    op_count(run, 8.0 * (double)(rows * h) + 6.0 * (double)rows, 5 * rows * h + 2 * rows, rows * h);
    return TRUE;
}

/* Spreads dy over the table rows that each patch read. */
static void patch_embed_scatter(const OpRun *run, real *dtable)
{
    const PatchEmbedAttr *attr = run->view->op->attr;
    const real *dy = real_data_const(run->dout[0]), *grid = real_data_const(run->in[1]);
    int64_t rows = op_rows(run->view, op_in(run->view, 0)->rows), h = attr->hidden;
    memset(dtable, 0, (size_t)tensor_numel(run->dparam[1]) * sizeof *dtable);
    for (int64_t t = 0; dy != NULL && t < rows; t++) {
        TableCorners corners = table_corners(attr->table, grid + 2 * t);
        for (int c = 0; c < 4; c++) {
            for (int64_t d = 0; d < h; d++) {
                dtable[corners.rows[c] * h + d] += corners.shares[c] * dy[t * h + d];
            }
        }
    }
    op_count(run, 8.0 * (double)(rows * h) + 6.0 * (double)rows, 5 * rows * h + 2 * rows,
             4 * rows * h + tensor_numel(run->dparam[1]));
}

gboolean REAL_NAME(patch_embed_backward)(const OpRun *run, GError **error)
{
    (void)error;
    const PatchEmbedAttr *attr = run->view->op->attr;
    int64_t rows = op_rows(run->view, op_in(run->view, 0)->rows), h = attr->hidden, width = attr->patch_width;
    int64_t m = run->dout[0] != NULL ? rows : 0;
    const real *dy = real_data_const(run->dout[0]);
    if (run->din[0] != NULL) {
        memset(run->din[0]->data, 0, (size_t)tensor_numel(run->din[0]) * sizeof(real));
        Matmul product = {.m = m, .n = width, .k = h};
        REAL_NAME(matmul_dense)(product, dy, real_data_const(run->param[0]), real_data(run->din[0]));
        op_count(run, 2.0 * (double)(rows * h * width), (rows + width) * h, rows * width);
    }
    if (run->dparam[0] != NULL) {
        Matmul product = {.m = h, .n = width, .k = m, .trans_a = TRUE};
        REAL_NAME(matmul_dense)(product, dy, real_data_const(run->in[0]), real_data(run->dparam[0]));
        op_count(run, 2.0 * (double)(rows * h * width), rows * (h + width), h * width);
    }
    if (run->dparam[1] != NULL) {
        patch_embed_scatter(run, real_data(run->dparam[1]));
    }
    return TRUE;
}

#if REAL_HAS_CLASS
int patch_embed_add(Graph *graph, const char *prefix, int patches, int grid, const PatchEmbedAttr *attr)
{
    char name[GRAPH_NAME_MAX];
    g_assert(graph_tensor(graph, patches)->width == attr->patch_width && graph_tensor(graph, grid)->width == 2);
    g_snprintf(name, sizeof name, "%s.proj.weight", prefix);
    int weight = graph_add_param(graph, name, PARAM_MATRIX, attr->hidden, attr->patch_width, 0);
    g_snprintf(name, sizeof name, "%s.pos_emb.weight", prefix);
    int table = graph_add_param(graph, name, PARAM_EMBEDDING, attr->table * attr->table, attr->hidden, 0);
    int y = graph_add_tensor(graph, prefix, graph_tensor(graph, patches)->rows, attr->hidden, graph->compute);
    Op *op = op_add(graph, OP_patch_embed, prefix, attr, sizeof *attr);
    op_input(op, patches);
    op_input(op, grid);
    op_param(graph, op, weight);
    op_param(graph, op, table);
    op_output(graph, op, y);
    return y;
}

static void patch_embed_saved(const OpView *view, OpSaved *ret_saved)
{
    (void)view;
    *ret_saved = (OpSaved){.inputs = 3};
}

/*
 * kernels.md 11: the linear layer, then per element four weighted table entries (7) and their addition (1). Weights of
 * the interpolation: 6 per patch. Eager: the interpolated table and the sum are kernels of their own.
 */
static void patch_embed_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const PatchEmbedAttr *attr = view->op->attr;
    int64_t rows = op_rows(view, op_in(view, 0)->rows), out = op_out_bytes(view, 0);
    int64_t grid = op_in_bytes(view, 1);
    double n = (double)(rows * attr->hidden), weights = 6.0 * (double)rows;
    *ret_cost = (OpCost){0};
    op_cost_gemm(ret_cost, WORK_GEMM_NT, op_in(view, 0)->dtype, rows, attr->hidden, attr->patch_width);
    if (view->op->eager) {
        op_cost_stream(ret_cost, WORK_GATHER, 7 * n + weights, 4 * out + grid, out);
        op_cost_stream(ret_cost, WORK_ELEMENTWISE, n, 2 * out, out);
        ret_cost->workspace_bytes = 2 * out;
        return;
    }
    op_cost_stream(ret_cost, WORK_GATHER, 8 * n + weights, 5 * out + grid, out);
}

/* Weight gradient by a product, table gradient by scattering the rows of dy; the pixels need none. */
static void patch_embed_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const PatchEmbedAttr *attr = view->op->attr;
    int64_t rows = op_rows(view, op_in(view, 0)->rows), out = op_out_bytes(view, 0);
    Dtype dtype = op_in(view, 0)->dtype;
    *ret_cost = (OpCost){0};
    if (op_needs_input_grad(view, 0)) {
        op_cost_gemm(ret_cost, WORK_GEMM_NN, dtype, rows, attr->patch_width, attr->hidden);
    }
    if (op_trains_param(view, 0)) {
        op_cost_gemm(ret_cost, WORK_GEMM_TN, dtype, attr->hidden, attr->patch_width, rows);
    }
    if (op_trains_param(view, 1)) {
        int64_t table = dtype_bytes(dtype, attr->table * attr->table * attr->hidden);
        double flops = 8.0 * (double)(rows * attr->hidden) + 6.0 * (double)rows;
        op_cost_stream(ret_cost, WORK_COPY, 0, 0, table);
        op_cost_stream(ret_cost, WORK_SCATTER_ADD, flops, 5 * out + op_in_bytes(view, 1), 4 * out);
    }
}

static gboolean patch_embed_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        PatchEmbedAttr attr;
        int64_t rows;
        gboolean pixels_need_grad;
    } samples[] = {{{12, 5, 4}, 6, FALSE}, {{3, 4, 1}, 1, TRUE}, {{7, 3, 3}, 9, TRUE}};
    if (idx < 0 || idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    int64_t width = samples[idx].attr.patch_width;
    int patches = graph_add_input(graph, "patches", ROWS_PATCHES, width, graph->compute, samples[idx].pixels_need_grad);
    int grid = graph_add_input(graph, "grid", ROWS_PATCHES, 2, op_wide_dtype(graph), FALSE);
    graph_add_output(graph, patch_embed_add(graph, "patch_embed", patches, grid, &samples[idx].attr));
    rows->rows[ROWS_PATCHES] = samples[idx].rows;
    rows->rows[ROWS_SEQUENCES] = 1;
    return TRUE;
}

extern const OpClass op_patch_embed;
const OpClass op_patch_embed = {
    .id = "patch_embed",
    .title = "patch embedding",
    .no_grad_inputs = 1u << 1,
    .saved = patch_embed_saved,
    .forward_cost = patch_embed_forward_cost,
    .backward_cost = patch_embed_backward_cost,
    .forward = REAL_KERNELS(patch_embed_forward),
    .backward = REAL_KERNELS(patch_embed_backward),
    .sample = patch_embed_sample,
};
#endif
