/*
 * Golden cases: every file of models/golden/cases, and of the folder that MOESIM_GOLDEN_DIR names (laid out like it:
 * ops/), in float64 and float32. Files of operators without an adapter are named in a comment and not run.
 *
 * And every result in every file counts: with one number of one tensor changed, the case must fail.
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

/* Changes the first number of a tensor so that it is far off, or back; FALSE when it is empty. */
static gboolean disturb(const Safetensors *file, const char *name)
{
    static const struct {
        size_t at;
        guint8 bits;
    } flips[N_SAFETENSORS_TYPES] = {
        [SAFETENSORS_F64] = {7, 0x40}, [SAFETENSORS_F32] = {3, 0x40}, [SAFETENSORS_BF16] = {1, 0x40},
        [SAFETENSORS_F16] = {1, 0x40}, [SAFETENSORS_I64] = {0, 1},    [SAFETENSORS_I32] = {0, 1},
        [SAFETENSORS_U16] = {0, 1},    [SAFETENSORS_U8] = {0, 1},     [SAFETENSORS_I8] = {0, 1}};
    SafetensorsType type;
    size_t size;
    guint8 *bytes = (guint8 *)(uintptr_t)safetensors_bytes(file, name, &type, &size); /* the file is this test's own */
    if (size == 0) {
        return FALSE;
    }
    bytes[flips[type].at] ^= flips[type].bits;
    return TRUE;
}

static void test_disturbed(void **state)
{
    const Case *c = *state;
    GError *error = NULL;
    g_autoptr(Safetensors) file = safetensors_load(c->path, &error);
    check_no_error(error);
    for (int i = 0; i < safetensors_n(file); i++) {
        const char *name = safetensors_name(file, i);
        gboolean is_result = g_str_has_prefix(name, "out.") || g_str_has_prefix(name, "grad.");
        if (is_result && disturb(file, name)) {
            GoldenResult result;
            gboolean passed = golden_check_file(file, c->real, &result, &error) && result.passed;
            g_clear_error(&error);
            disturb(file, name);
            if (passed) {
                print_error("%s: passes whatever %s is\n", c->name, name);
            }
            assert_false(passed);
        }
    }
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
    g_autofree struct CMUnitTest *tests = g_new0(struct CMUnitTest, 2 * cases->len);
    size_t n = 0;
    for (guint i = 0; i < cases->len; i++) {
        Case *c = &g_array_index(cases, Case, i);
        tests[n++] = (struct CMUnitTest){.name = c->name, .test_func = test_case, .initial_state = c};
        if (c->real == TENSOR_F64) {
            tests[n++] = (struct CMUnitTest){.name = c->name, .test_func = test_disturbed, .initial_state = c};
        }
    }
    return _cmocka_run_group_tests("golden", tests, n, NULL, NULL);
}
