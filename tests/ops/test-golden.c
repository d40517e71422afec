/*
 * Golden cases: every file of models/golden/cases, and of the folder that MOESIM_GOLDEN_DIR names (laid out like it:
 * ops/), in float64 and float32. Files of operators without an adapter are named in a comment and not run.
 */
#include "tests/check.h"

#include "models/golden.h"

typedef struct Case {
    char *name;
    char *path;
    TensorType real;
} Case;

static void test_case(void **state)
{
    const Case *c = *state;
    GError *error = NULL;
    GoldenResult result;
    g_autoptr(Safetensors) file = safetensors_load(c->path, &error);
    check_no_error(error);
    golden_check_file(file, c->real, &result, &error);
    check_no_error(error);
    if (!result.passed) {
        print_error("%s: %s is off by %.3g of its bound (relative error %.3g)\n", c->name, result.worst_at,
                    result.worst, result.worst_error);
    }
    assert_true(result.passed);
    assert_true(result.n_compared > 0);
}

static void case_clear(void *at)
{
    g_free(((Case *)at)->name);
    g_free(((Case *)at)->path);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Cases of one folder, by name. */
static void add_folder(GArray *cases, const char *folder)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    const char *name;
    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        if (g_str_has_suffix(name, ".safetensors")) {
            g_ptr_array_add(names, g_strdup(name));
        }
    }
    g_ptr_array_sort(names, compare_names);
    for (guint i = 0; i < names->len; i++) {
        g_auto(GStrv) parts = g_strsplit(names->pdata[i], "__", 2);
        if (!golden_knows(parts[0])) {
            print_message("# no adapter for %s\n", (char *)names->pdata[i]);
            continue;
        }
        for (int f32 = 0; f32 < (strcmp(parts[0], "rounding") == 0 || strcmp(parts[0], "quantile_bias") == 0 ? 1 : 2);
             f32++) {
            Case c = {
                .name = g_strdup_printf("%s %s", (char *)names->pdata[i], f32 ? "float32" : "float64"),
                .path = g_build_filename(folder, names->pdata[i], NULL),
                .real = f32 ? TENSOR_F32 : TENSOR_F64,
            };
            g_array_append_val(cases, c);
        }
    }
}

int main(void)
{
    g_autofree char *shipped = check_source_path("models/golden/cases");
    const char *more = g_getenv("MOESIM_GOLDEN_DIR");
    g_autoptr(GArray) cases = g_array_new(FALSE, FALSE, sizeof(Case));
    g_array_set_clear_func(cases, case_clear);
    add_folder(cases, shipped);
    if (more != NULL) {
        g_autofree char *folder = g_build_filename(more, "ops", NULL);
        add_folder(cases, folder);
    }
    return check_run_cases("golden", test_case, cases->data, cases->len, sizeof(Case));
}
