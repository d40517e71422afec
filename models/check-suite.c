#include "models/check-suite.h"

#include <gio/gio.h>
#include <math.h>
#include <string.h>

#include "golden-cases.h"
#include "models/check-isolate.h"
#include "models/check-pairs.h"
#include "models/check.h"
#include "models/golden-tables.h"
#include "models/golden-train.h"
#include "models/golden.h"
#include "sim/base/error.h"
#include "sim/base/file.h"

#define CARRIED "/moesim/golden"

typedef struct Check Check;
typedef void (*CheckRun)(const Check *check, CheckOutcome *outcome);

struct Check {
    char *name;
    CheckRun run;
    int kind, sample; /* operators: kind and sample (-1: completeness); pairs: kind = index */
    char *path;       /* golden: file, folder or resource */
    gboolean carried; /* path is a resource */
    TensorType real;
};

struct CheckSuite {
    GArray *checks; /* Check */
    const char *filter;
};

static void check_clear(void *at)
{
    g_free(((Check *)at)->name);
    g_free(((Check *)at)->path);
}

void check_outcome_clear(CheckOutcome *outcome)
{
    g_clear_pointer(&outcome->detail, g_free);
}

/* A failed check says why. */
static void outcome_error(CheckOutcome *outcome, GError *error)
{
    outcome->passed = FALSE;
    outcome->worst = (double)INFINITY;
    outcome->detail = g_strdup(error->message);
    g_error_free(error);
}

static void run_complete(const Check *check, CheckOutcome *outcome)
{
    const char *missing = check_op_missing((OpKind)check->kind);
    outcome->passed = missing == NULL;
    outcome->detail = g_strdup(missing != NULL ? missing : "costs, kernels and samples");
}

static void run_kept(const Check *check, CheckOutcome *outcome)
{
    GError *error = NULL;
    if (!check_op_kept((OpKind)check->kind, &error)) {
        outcome_error(outcome, error);
        return;
    }
    outcome->detail = g_strdup("everything that is kept is read");
}

static void run_sample(const Check *check, CheckOutcome *outcome)
{
    GError *error = NULL;
    CheckReport report;
    if (!check_op_sample((OpKind)check->kind, check->sample, &report, &error)) {
        outcome_error(outcome, error);
        return;
    }
    outcome->worst = fmax(report.finite_difference / CHECK_DIFFERENCE_BOUND, report.float32 / CHECK_FLOAT32_BOUND);
    outcome->detail = g_strdup_printf("%" G_GINT64_FORMAT
                                      " derivatives within %.2g, float32 within %.2g, %.0f FLOPs and %" G_GINT64_FORMAT
                                      " elements counted = formula",
                                      report.n_derivatives, report.finite_difference, report.float32, report.flops,
                                      report.bytes / (int64_t)sizeof(double));
}

static void run_pair(const Check *check, CheckOutcome *outcome)
{
    GError *error = NULL;
    if (!check_pair(check->kind, &outcome->worst, &error)) {
        outcome_error(outcome, error);
        return;
    }
    outcome->detail = g_strdup("values and gradients");
}

/* The bytes of a case, from the program or from a file. */
static GBytes *carried_or_file(const Check *check, GError **error)
{
    size_t length;
    if (check->carried) {
        return g_resource_lookup_data(golden_cases_get_resource(), check->path, G_RESOURCE_LOOKUP_FLAGS_NONE, error);
    }
    char *text = file_read(check->path, &length, error);
    return text != NULL ? g_bytes_new_take(text, length) : NULL;
}

static Safetensors *golden_open(const Check *check, GError **error)
{
    g_autoptr(GBytes) bytes = carried_or_file(check, error);
    if (bytes == NULL) {
        return NULL;
    }
    size_t size;
    const void *data = g_bytes_get_data(bytes, &size);
    return safetensors_parse(data, size, check->path, error);
}

static void run_golden(const Check *check, CheckOutcome *outcome)
{
    GError *error = NULL;
    GoldenResult result;
    g_autoptr(Safetensors) file = golden_open(check, &error);
    if (file == NULL || !golden_check_file(file, check->real, &result, &error)) {
        outcome_error(outcome, error);
        return;
    }
    outcome->passed = result.passed;
    outcome->worst = result.worst;
    outcome->detail = g_strdup_printf("%d tensors, worst %s: relative error %.2g", result.n_compared,
                                      *result.worst_at != '\0' ? result.worst_at : "none", result.worst_error);
}

static void run_table(const Check *check, CheckOutcome *outcome)
{
    GError *error = NULL;
    int64_t n = 0;
    size_t length = 0;
    g_autoptr(GBytes) bytes = carried_or_file(check, &error);
    g_autofree char *name = g_path_get_basename(check->path);
    const char *text = bytes != NULL ? g_bytes_get_data(bytes, &length) : NULL;
    if (bytes == NULL || !golden_table_check(name, text, length, &n, &error)) {
        outcome_error(outcome, error);
        return;
    }
    outcome->detail = g_strdup_printf("%" G_GINT64_FORMAT " numbers, all equal", n);
}

static void run_training(const Check *check, CheckOutcome *outcome)
{
    GError *error = NULL;
    GoldenTrainResult result;
    if (!golden_train(check->path, check->real, 0, &result, &error)) {
        outcome_error(outcome, error);
        return;
    }
    outcome->passed = result.passed;
    outcome->worst = fmax(fmax(result.loss, result.grad_norm), fmax(result.step1_grad, result.weights));
    outcome->detail =
        result.passed ? g_strdup_printf("%" G_GINT64_FORMAT " steps: loss, gradients, loads, weights", result.n_steps)
                      : g_strdup(result.message);
}

/* Takes the check over; drops it when the filter does. */
static void suite_add(CheckSuite *suite, Check check)
{
    if (suite->filter != NULL && strstr(check.name, suite->filter) == NULL) {
        check_clear(&check);
        return;
    }
    g_array_append_val(suite->checks, check);
}

static void add_operators(CheckSuite *suite)
{
    for (int kind = 0; kind < N_OPS; kind++) {
        const char *id = op_class((OpKind)kind)->id;
        suite_add(suite, (Check){.name = g_strdup_printf("operators/%s/complete", id),
                                 .run = run_complete,
                                 .kind = kind,
                                 .sample = -1});
        suite_add(suite, (Check){.name = g_strdup_printf("operators/%s/kept", id), .run = run_kept, .kind = kind});
        int n = check_op_n_samples((OpKind)kind);
        for (int i = 0; i < n; i++) {
            suite_add(suite, (Check){.name = g_strdup_printf("operators/%s/sample-%d", id, i),
                                     .run = run_sample,
                                     .kind = kind,
                                     .sample = i});
        }
    }
}

static void add_pairs(CheckSuite *suite)
{
    for (int i = 0; i < check_n_pairs(); i++) {
        suite_add(suite, (Check){.name = g_strdup_printf("pairs/%s", check_pair_name(i)), .run = run_pair, .kind = i});
    }
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Rounding is exact, and the exact quantile jumps between float32 neighbours: both run in float64 alone. */
static gboolean float64_only(const char *file_name)
{
    return g_str_has_prefix(file_name, "rounding__") || g_str_has_prefix(file_name, "quantile_bias__");
}

/* Cases of a folder or of the resource; names are sorted and taken over. */
static void add_cases(CheckSuite *suite, GPtrArray *names, const char *group, const char *folder, gboolean carried)
{
    g_ptr_array_sort(names, compare_names);
    for (guint i = 0; i < names->len; i++) {
        const char *name = names->pdata[i];
        if (golden_table_knows(name)) {
            suite_add(suite, (Check){.name = g_strdup_printf("%s/%s", group, name),
                                     .run = run_table,
                                     .path = g_build_filename(folder, name, NULL),
                                     .carried = carried});
        }
        if (!g_str_has_suffix(name, ".safetensors")) {
            continue;
        }
        for (int f32 = 0; f32 < (float64_only(name) ? 1 : 2); f32++) {
            suite_add(suite,
                      (Check){.name = g_strdup_printf("%s/%.*s/%s", group, (int)(strlen(name) - strlen(".safetensors")),
                                                      name, f32 ? "float32" : "float64"),
                              .run = run_golden,
                              .path = g_build_filename(folder, name, NULL),
                              .carried = carried,
                              .real = f32 ? TENSOR_F32 : TENSOR_F64});
        }
    }
}

static void add_carried(CheckSuite *suite)
{
    g_auto(GStrv) children =
        g_resource_enumerate_children(golden_cases_get_resource(), CARRIED, G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    for (char **name = children; name != NULL && *name != NULL; name++) {
        g_ptr_array_add(names, *name);
    }
    add_cases(suite, names, "golden", CARRIED, TRUE);
}

/* Names in a folder; empty when it does not exist. */
static GPtrArray *folder_names(const char *folder)
{
    GPtrArray *names = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    const char *name;
    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_ptr_array_add(names, g_strdup(name));
    }
    return names;
}

static gboolean add_folder(CheckSuite *suite, const char *folder, GError **error)
{
    g_autofree char *ops = g_build_filename(folder, "ops", NULL), *train = g_build_filename(folder, "train", NULL);
    g_autoptr(GPtrArray) cases = folder_names(ops), runs = folder_names(train);
    if (cases->len == 0 && runs->len == 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_IO, "%s: holds neither ops/ with cases nor train/ with runs",
                    folder);
        return FALSE;
    }
    add_cases(suite, cases, "folder", ops, FALSE);
    g_ptr_array_sort(runs, compare_names);
    for (guint i = 0; i < runs->len * 2; i++) {
        const char *name = runs->pdata[i / 2];
        g_autofree char *path = g_build_filename(train, name, NULL);
        if (g_file_test(path, G_FILE_TEST_IS_DIR)) {
            suite_add(suite, (Check){.name = g_strdup_printf("training/%s/%s", name, i % 2 ? "float32" : "float64"),
                                     .run = run_training,
                                     .path = g_steal_pointer(&path),
                                     .real = i % 2 ? TENSOR_F32 : TENSOR_F64});
        }
    }
    return TRUE;
}

CheckSuite *check_suite_new(const char *golden_dir, const char *filter, GError **error)
{
    g_autoptr(CheckSuite) suite = g_new0(CheckSuite, 1);
    suite->checks = g_array_new(FALSE, FALSE, sizeof(Check));
    g_array_set_clear_func(suite->checks, check_clear);
    suite->filter = filter;
    add_operators(suite);
    add_pairs(suite);
    add_carried(suite);
    if (golden_dir != NULL && !add_folder(suite, golden_dir, error)) {
        return NULL;
    }
    suite->filter = NULL;
    return g_steal_pointer(&suite);
}

void check_suite_free(CheckSuite *suite)
{
    if (suite != NULL) {
        g_array_unref(suite->checks);
        g_free(suite);
    }
}

size_t check_suite_n(const CheckSuite *suite)
{
    return suite->checks->len;
}

const char *check_suite_name(const CheckSuite *suite, size_t idx)
{
    return g_array_index(suite->checks, Check, idx).name;
}

static void run_here(const void *data, CheckOutcome *outcome)
{
    const Check *check = data;
    check->run(check, outcome);
}

void check_suite_run(const CheckSuite *suite, size_t idx, CheckOutcome *ret_outcome)
{
    const Check *check = &g_array_index(suite->checks, Check, idx);
    *ret_outcome = (CheckOutcome){.passed = TRUE};
    if (check->path != NULL && !check->carried) {
        check_isolated(run_here, check, ret_outcome);
    } else {
        run_here(check, ret_outcome);
    }
}
