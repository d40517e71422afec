/*
 * Operators of the vision tower: where merged patches go, position tables read at and between their cells, input that
 * is refused.
 */
#include "tests/check.h"

#include "models/execute.h"
#include "models/ops/image-merge.h"
#include "models/ops/patch-embed.h"
#include "sim/base/error.h"

/* Runs a graph of one input, one value per patch; returns the execution. */
static Execution *run_merge(Graph *graph, const ImageMergeAttr *attr, int64_t n_patches, Tensor *patches,
                            GError **error)
{
    int x = graph_add_input(graph, "x", ROWS_PATCHES, 1, DTYPE_FP64, TRUE);
    graph_add_output(graph, image_merge_add(graph, "merge", x, attr));
    graph_finish(graph);
    int64_t n_out = n_patches / (attr->frames * attr->merge * attr->merge);
    RowCounts rows = {.rows = {[ROWS_PATCHES] = n_patches, [ROWS_IMAGE_TOKENS] = n_out}};
    Execution *run = execute_new(graph, &rows, TENSOR_F64);
    for (int64_t i = 0; i < n_patches; i++) {
        tensor_set(patches, i, (double)i);
    }
    execute_put(run, x, patches);
    execute_forward(run, error);
    return run;
}

/* Two frames of 2 x 4 patches: squares side by side, the mean of the frames in each cell. */
static void test_squares(void **state)
{
    (void)state;
    static const double want[] = {4, 5, 8, 9, 6, 7, 10, 11};
    ImageMergeAttr attr = {.merge = 2, .frames = 2, .height = 2, .width = 4};
    GError *error = NULL;
    g_autoptr(Graph) graph = graph_new(DTYPE_FP64);
    g_autoptr(Tensor) patches = tensor_new_2d(TENSOR_F64, 16, 1);
    g_autoptr(Execution) run = run_merge(graph, &attr, 16, patches, &error);
    check_no_error(error);
    const Tensor *y = execute_value(run, g_array_index(graph->outputs, int, 0));
    check_int(y->dims[0], 2);
    for (int i = 0; i < 8; i++) {
        check_close(tensor_get(y, i), want[i], 1e-15);
    }
}

static void test_ragged(void **state)
{
    (void)state;
    ImageMergeAttr attr = {.merge = 2, .frames = 1, .height = 2, .width = 4};
    GError *error = NULL;
    g_autoptr(Graph) graph = graph_new(DTYPE_FP64);
    g_autoptr(Tensor) patches = tensor_new_2d(TENSOR_F64, 12, 1);
    g_autoptr(Execution) run = run_merge(graph, &attr, 12, patches, &error);
    check_error(&error, MOESIM_ERROR_INPUT, "12 patches are not whole clips");
}

/* A table of 3 x 3 rows with one number each; the pixels add nothing. */
static gboolean embed_at(double row, double column, double *ret_value, GError **error)
{
    PatchEmbedAttr attr = {.patch_width = 2, .hidden = 1, .table = 3};
    RowCounts rows = {.rows = {[ROWS_PATCHES] = 1}};
    g_autoptr(Graph) graph = graph_new(DTYPE_FP64);
    int x = graph_add_input(graph, "x", ROWS_PATCHES, 2, DTYPE_FP64, FALSE);
    int grid = graph_add_input(graph, "grid", ROWS_PATCHES, 2, DTYPE_FP64, FALSE);
    int y = patch_embed_add(graph, "embed", x, grid, &attr);
    graph_add_output(graph, y);
    graph_finish(graph);
    g_autoptr(Tensor) pixels = tensor_new_2d(TENSOR_F64, 1, 2), place = tensor_new_2d(TENSOR_F64, 1, 2);
    g_autoptr(Tensor) weight = tensor_new_2d(TENSOR_F64, 1, 2), table = tensor_new_2d(TENSOR_F64, 9, 1);
    tensor_set(place, 0, row);
    tensor_set(place, 1, column);
    for (int i = 0; i < 9; i++) {
        tensor_set(table, i, i * i);
    }
    g_autoptr(Execution) run = execute_new(graph, &rows, TENSOR_F64);
    execute_put(run, x, pixels);
    execute_put(run, grid, place);
    execute_put_param(run, 0, weight);
    execute_put_param(run, 1, table);
    if (!execute_forward(run, error)) {
        return FALSE;
    }
    *ret_value = tensor_get(execute_value(run, y), 0);
    return TRUE;
}

static void test_positions(void **state)
{
    (void)state;
    static const struct {
        double row, column, value;
    } places[] = {
        {0, 0, 0},     {1, 2, 25}, {2, 2, 64}, {0.5, 0, 4.5}, {1, 1.5, 20.5}, {0.5, 0.5, (0 + 1 + 9 + 16) / 4.0},
        {-0.4, -3, 0}, {9, 9, 64}, /* past the edge: the edge */
    };
    for (guint i = 0; i < G_N_ELEMENTS(places); i++) {
        double value = -1;
        GError *error = NULL;
        embed_at(places[i].row, places[i].column, &value, &error);
        check_no_error(error);
        check_close(value + 1, places[i].value + 1, 1e-15);
    }
    double value;
    GError *error = NULL;
    assert_false(embed_at(NAN, 0, &value, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "patch 0 is not a number");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_squares),
        cmocka_unit_test(test_ragged),
        cmocka_unit_test(test_positions),
    };
    return cmocka_run_group_tests_name("image-merge", tests, NULL, NULL);
}
