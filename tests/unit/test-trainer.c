/*
 * Training runs of an independent implementation, repeated step by step: in full from the folder that MOESIM_GOLDEN_DIR
 * names (train/<run>), and a small one that is shipped.
 */
#include "tests/check.h"

#include "models/golden-train.h"

typedef struct Case {
    char *name;
    char *folder;
    TensorType real;
} Case;

static void test_run(void **state)
{
    const Case *c = *state;
    GError *error = NULL;
    GoldenTrainResult result;
    golden_train(c->folder, c->real, 0, &result, &error);
    check_no_error(error);
    print_message(
        "# %s: %d steps, parts of the bounds: loss %.3g, gradient norm %.3g, step 1 gradients %.3g, weights %.3g\n",
        c->name, (int)result.n_steps, result.loss, result.grad_norm, result.step1_grad, result.weights);
    if (!result.passed) {
        print_error("%s: %s\n", c->name, result.message);
    }
    assert_true(result.passed);
}

static void add_folder(GArray *cases, const char *folder)
{
    static const char *const runs[] = {"llama-tiny-muon", "llama-tiny", "mixtral-tiny", "k3-mini-lora", "k3-mini"};
    for (size_t i = 0; i < 2 * G_N_ELEMENTS(runs); i++) {
        char *path = g_build_filename(folder, runs[i / 2], NULL);
        if (!g_file_test(path, G_FILE_TEST_IS_DIR)) {
            g_free(path);
            continue;
        }
        Case c = {g_strdup_printf("%s %s", runs[i / 2], i % 2 ? "float32" : "float64"), path,
                  i % 2 ? TENSOR_F32 : TENSOR_F64};
        g_array_append_val(cases, c);
    }
}

int main(void)
{
    g_autofree char *shipped = check_source_path("models/golden/train");
    const char *more = g_getenv("MOESIM_GOLDEN_DIR");
    g_autoptr(GArray) cases = g_array_new(FALSE, FALSE, sizeof(Case));
    g_autofree char *folder = more != NULL ? g_build_filename(more, "train", NULL) : NULL;
    add_folder(cases, folder != NULL ? folder : shipped);
    int failed = check_run_cases("trainer", test_run, cases->data, cases->len, sizeof(Case));
    for (guint i = 0; i < cases->len; i++) {
        g_free(g_array_index(cases, Case, i).name);
        g_free(g_array_index(cases, Case, i).folder);
    }
    return failed;
}
