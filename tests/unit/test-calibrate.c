/* Calibration: the shipped H200 descriptor explains its tables within bounds, and is what the tables give. */
#include "tests/check.h"

#include <gsl/gsl_errno.h>
#include <jansson.h>

#include "sim/base/error.h"
#include "workloads/calibrate.h"

static char **tables(void)
{
    g_autofree char *dir = g_build_filename(g_getenv("MOESIM_SOURCE_ROOT"), "hw", "calibration", "h200", NULL);
    g_autoptr(GPtrArray) paths = g_ptr_array_new();
    GDir *open = g_dir_open(dir, 0, NULL);
    const char *name;
    while ((name = g_dir_read_name(open)) != NULL) {
        if (g_str_has_prefix(name, "op_") || g_str_has_prefix(name, "collectives")) {
            g_ptr_array_add(paths, g_build_filename(dir, name, NULL));
        }
    }
    g_dir_close(open);
    for (guint i = 1; i < paths->len; i++) { /* names in order: few, so by insertion */
        for (guint k = i; k > 0 && strcmp(paths->pdata[k - 1], paths->pdata[k]) > 0; k--) {
            gpointer swap = paths->pdata[k];
            paths->pdata[k] = paths->pdata[k - 1];
            paths->pdata[k - 1] = swap;
        }
    }
    g_ptr_array_add(paths, NULL);
    return (char **)g_ptr_array_free(g_steal_pointer(&paths), FALSE);
}

/* Mean absolute error over rows that took longer, and transfers that were larger, than the bounds hold for. */
static const struct {
    LawKind laws[5];
    int n_laws;
    double bound;
} bounds[] = {
    {{LAW_gemm}, 1, 0.05},
    {{LAW_grouped_gemm}, 1, 0.08},
    {{LAW_attention_forward, LAW_attention_backward}, 2, 0.06},
    {{LAW_kda_forward, LAW_kda_backward}, 2, 0.08},
    {{LAW_copy, LAW_elementwise}, 2, 0.06},
    {{LAW_norm_forward, LAW_norm_backward, LAW_softmax}, 3, 0.08},
    {{LAW_gather, LAW_scatter_add, LAW_weighted_sum}, 3, 0.08},
    {{LAW_sort, LAW_topk, LAW_optimizer, LAW_chunk_cat}, 4, 0.08},
    {{LAW_all_gather, LAW_reduce_scatter, LAW_all_reduce, LAW_all_to_all, LAW_send_recv}, 5, 0.05},
    {{LAW_host_link}, 1, 0.03},
};

static void test_bounds(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_auto(GStrv) paths = tables();
    g_autoptr(Device) device = device_load("h200-sxm", &error);
    g_autoptr(GPtrArray) unused = g_ptr_array_new_with_free_func(g_free);
    GArray *samples[N_LAWS] = {0};
    assert_true(calibrate_read((const char *const *)paths, device, samples, unused, &error));
    for (size_t i = 0; i < G_N_ELEMENTS(bounds); i++) {
        double sum = 0.0;
        int n = 0;
        for (int k = 0; k < bounds[i].n_laws; k++) {
            LawKind law = bounds[i].laws[k];
            for (guint row = 0; row < samples[law]->len; row++) {
                const FitSample *sample = &g_array_index(samples[law], FitSample, row);
                if (fit_sample_is_large(sample)) {
                    sum += fabs(fit_predict(device, device->laws, law, sample) / sample->seconds - 1.0);
                    n++;
                }
            }
        }
        assert_true(n > 0);
        check_close(sum / n, 0.0, bounds[i].bound);
    }
    for (int i = 0; i < N_LAWS; i++) {
        g_array_unref(samples[i]);
    }
}

/* The shipped preset is the output of this very calibration. */
static void test_shipped(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_auto(GStrv) paths = tables();
    gsl_set_error_handler_off();
    g_autoptr(Calibration) calibration = calibrate((const char *const *)paths, "h200-sxm", NULL, NULL, &error);
    check_no_error(error);
    g_autoptr(Device) shipped = device_load("h200-sxm", &error);
    for (int i = 0; i < N_LAWS; i++) {
        const LawFit *fresh = &calibration->device->laws->fits[i], *old = &shipped->laws->fits[i];
        check_int(fresh->n_rows, old->n_rows);
        check_close(fresh->mean_abs_error, old->mean_abs_error, 1e-3);
        for (int k = 0; k < law_form((LawKind)i)->n_params; k++) {
            check_close(fresh->params[k], old->params[k], 1e-3);
        }
    }
}

static const struct {
    const char *file, *text, *message;
} mistakes[] = {
    {"op_gemm.csv", "name,m,n,seconds\nnt_forward,1,2,0.1\n", "no column \"k\""},
    {"op_gemm.csv", "name,m,n,k,seconds\nnt_forward,1,2,x,0.1\n", "k"},
    {"op_gemm.csv", "name,m,n,k,seconds\nnt_forward,1,2,0,0.1\n", "0 is no count"},
    {"op_gemm.csv", "name,m,n,k,seconds\nnt_forward,1,2,3,0\n", "above 0"},
    {"op_gemm.csv", "name,m,n,k,seconds\nnt_forward,1,2\n", "op_gemm.csv:2"},
};

static void test_mistakes(void **state)
{
    (void)state;
    g_autofree char *dir = g_dir_make_tmp("moesim-XXXXXX", NULL);
    for (size_t i = 0; i < G_N_ELEMENTS(mistakes); i++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *path = g_build_filename(dir, mistakes[i].file, NULL);
        const char *paths[] = {path, NULL};
        assert_true(g_file_set_contents(path, mistakes[i].text, -1, NULL));
        g_autoptr(Calibration) calibration = calibrate(paths, "h200-sxm", NULL, NULL, &error);
        assert_null(calibration);
        check_error(&error, MOESIM_ERROR_INPUT, mistakes[i].message);
        g_unlink(path);
    }
    g_rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest group[] = {
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_shipped),
        cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests(group, NULL, NULL);
}
