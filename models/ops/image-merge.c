#include "models/ops/image-merge.h"

#include <string.h>

#include "models/op.h"
#include "models/real-math.h"
#include "models/real.h"
#include "sim/base/error.h"

REAL_DECLARE(image_merge_forward);
REAL_DECLARE(image_merge_backward);

/* Row of y, and the square's cell in it, that patch (row, column) of a frame goes to. */
static int64_t merge_target(const ImageMergeAttr *attr, int64_t clip, int64_t row, int64_t column)
{
    int64_t squares_per_row = attr->width / attr->merge, per_clip = squares_per_row * (attr->height / attr->merge);
    int64_t square = clip * per_clip + row / attr->merge * squares_per_row + column / attr->merge;
    return square * attr->merge * attr->merge + row % attr->merge * attr->merge + column % attr->merge;
}

/* The rows of x must be whole clips of whole squares. */
static gboolean merge_check(const OpRun *run, int64_t n_rows, GError **error)
{
    const ImageMergeAttr *attr = run->view->op->attr;
    int64_t per_clip = attr->frames * attr->height * attr->width;
    if (attr->height % attr->merge != 0 || attr->width % attr->merge != 0 || per_clip <= 0 || n_rows % per_clip != 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: %" G_GINT64_FORMAT " patches are not whole clips of %" G_GINT64_FORMAT
                    " frames of %" G_GINT64_FORMAT " x %" G_GINT64_FORMAT " patches in squares of %" G_GINT64_FORMAT,
                    run->view->op->name, n_rows, attr->frames, attr->height, attr->width, attr->merge);
        return FALSE;
    }
    return TRUE;
}

/* Visits every patch: forward adds x to y, backward copies dy to dx; both scaled by 1 / frames. */
static void merge_walk(const ImageMergeAttr *attr, int64_t n_rows, int64_t width, real *small, real *merged,
                       gboolean backward)
{
    int64_t per_frame = attr->height * attr->width;
    real scale = 1 / (real)attr->frames;
    for (int64_t i = 0; i < n_rows; i++) {
        int64_t clip = i / (per_frame * attr->frames), place = i % per_frame;
        real *at = merged + merge_target(attr, clip, place / attr->width, place % attr->width) * width;
        real *patch = small + i * width;
        for (int64_t c = 0; c < width; c++) {
            if (backward) {
                patch[c] = at[c] * scale;
            } else {
                at[c] += patch[c];
            }
        }
    }
}

gboolean REAL_NAME(image_merge_forward)(const OpRun *run, GError **error)
{
    const ImageMergeAttr *attr = run->view->op->attr;
    int64_t width = op_in(run->view, 0)->width, n_rows = op_rows(run->view, op_in(run->view, 0)->rows);
    int64_t n_out = tensor_numel(run->out[0]);
    real *y = real_data(run->out[0]), scale = 1 / (real)attr->frames;
    if (!merge_check(run, n_rows, error)) {
        return FALSE;
    }
    memset(y, 0, (size_t)n_out * sizeof *y);
    merge_walk(attr, n_rows, width, run->in[0]->data, y, FALSE);
    for (int64_t i = 0; attr->frames > 1 && i < n_out; i++) {
        y[i] *= scale;
    }
    /* frames - 1 additions and one scaling per result; a single frame is only moved */
    op_count(run, attr->frames > 1 ? (double)(n_rows * width) : 0, n_rows * width, n_out);
    return TRUE;
}

gboolean REAL_NAME(image_merge_backward)(const OpRun *run, GError **error)
{
    const ImageMergeAttr *attr = run->view->op->attr;
    int64_t width = op_in(run->view, 0)->width, n_rows = op_rows(run->view, op_in(run->view, 0)->rows);
    if (!merge_check(run, n_rows, error)) {
        return FALSE;
    }
    if (run->din[0] == NULL) {
        return TRUE;
    }
    if (run->dout[0] == NULL) {
        memset(run->din[0]->data, 0, (size_t)tensor_numel(run->din[0]) * sizeof(real));
    } else {
        merge_walk(attr, n_rows, width, run->din[0]->data, run->dout[0]->data, TRUE);
    }
    op_count(run, attr->frames > 1 ? (double)(n_rows * width) : 0, n_rows * width / attr->frames, n_rows * width);
    return TRUE;
}

#if REAL_HAS_CLASS
int image_merge_add(Graph *graph, const char *name, int x, const ImageMergeAttr *attr)
{
    GraphTensor in = *graph_tensor(graph, x);
    int y = graph_add_tensor(graph, name, ROWS_IMAGE_TOKENS, attr->merge * attr->merge * in.width, in.dtype);
    Op *op = op_add(graph, OP_image_merge, name, attr, sizeof *attr);
    op_input(op, x);
    op_output(graph, op, y);
    return y;
}

static void image_merge_saved(const OpView *view, OpSaved *ret_saved)
{
    (void)view;
    *ret_saved = (OpSaved){0};
}

/* Fused: one pass that reads x and writes y; a clip's frames are added and the sum scaled. */
static void image_merge_forward_cost(const OpView *view, OpCost *ret_cost)
{
    const ImageMergeAttr *attr = view->op->attr;
    int64_t in = op_in_bytes(view, 0), out = op_out_bytes(view, 0);
    double n_in = (double)graph_tensor_numel(op_in(view, 0), view->rows);
    *ret_cost = (OpCost){0};
    if (view->op->eager && attr->frames > 1) {
        op_cost_stream(ret_cost, WORK_REDUCE, n_in, in, out);
        op_cost_stream(ret_cost, WORK_STRIDED, 0, out, out);
        ret_cost->workspace_bytes = out;
        return;
    }
    op_cost_stream(ret_cost, WORK_STRIDED, attr->frames > 1 ? n_in : 0, in, out);
}

static void image_merge_backward_cost(const OpView *view, OpCost *ret_cost)
{
    const ImageMergeAttr *attr = view->op->attr;
    int64_t in = op_in_bytes(view, 0), out = op_out_bytes(view, 0);
    double n_out = (double)graph_tensor_numel(op_out(view, 0), view->rows);
    *ret_cost = (OpCost){0};
    if (!op_needs_input_grad(view, 0)) {
        return;
    }
    if (view->op->eager && attr->frames > 1) {
        op_cost_stream(ret_cost, WORK_STRIDED, 0, out, out);
        op_cost_stream(ret_cost, WORK_STRIDED, n_out * (double)attr->frames, out, in);
        ret_cost->workspace_bytes = out;
        return;
    }
    op_cost_stream(ret_cost, WORK_STRIDED, attr->frames > 1 ? n_out * (double)attr->frames : 0, out, in);
}

static gboolean image_merge_sample(int idx, Graph *graph, RowCounts *rows)
{
    static const struct {
        ImageMergeAttr attr;
        int64_t n_clips, width;
    } samples[] = {{{2, 1, 4, 2}, 1, 3}, {{2, 3, 2, 4}, 1, 2}, {{2, 2, 2, 2}, 2, 5}, {{1, 1, 1, 3}, 1, 1}};
    if (idx < 0 || idx >= (int)G_N_ELEMENTS(samples)) {
        return FALSE;
    }
    const ImageMergeAttr *attr = &samples[idx].attr;
    int x = graph_add_input(graph, "x", ROWS_PATCHES, samples[idx].width, graph->compute, TRUE);
    graph_add_output(graph, image_merge_add(graph, "merge", x, attr));
    rows->rows[ROWS_PATCHES] = samples[idx].n_clips * attr->frames * attr->height * attr->width;
    rows->rows[ROWS_IMAGE_TOKENS] = rows->rows[ROWS_PATCHES] / (attr->frames * attr->merge * attr->merge);
    rows->rows[ROWS_SEQUENCES] = samples[idx].n_clips;
    return TRUE;
}

extern const OpClass op_image_merge;
const OpClass op_image_merge = {
    .id = "image_merge",
    .title = "image merge",
    .saved = image_merge_saved,
    .forward_cost = image_merge_forward_cost,
    .backward_cost = image_merge_backward_cost,
    .forward = REAL_KERNELS(image_merge_forward),
    .backward = REAL_KERNELS(image_merge_backward),
    .sample = image_merge_sample,
};
#endif
