/*
 * Every operator of ops.def, on its own samples: gradients against finite differences, counted FLOPs and bytes against
 * the fused formulas (all gradients, weights frozen, inputs without gradient), float32 against float64. Backward runs
 * on what the operator says it keeps and on nothing else (models/execute.c), so a `saved` that is too small
 * fails here; one that is too large fails too: everything kept must be read in some sample.
 *
 * An operator without value kernels or without three samples fails, unless `exempt` says why.
 */
#include "tests/check.h"

#include "models/check.h"

typedef struct Case {
    char *name;
    OpKind kind;
    int sample;
} Case;

static void test_sample(void **state)
{
    const Case *c = *state;
    GError *error = NULL;
    CheckReport report;
    check_op_sample(c->kind, c->sample, &report, &error);
    if (error != NULL) {
        print_error("%s\n", error->message);
    }
    assert_null(error);
}

static void test_complete(void **state)
{
    const Case *c = *state;
    GError *error = NULL;
    const char *missing = check_op_missing(c->kind);
    if (missing != NULL) {
        print_error("%s: %s\n", op_class(c->kind)->id, missing);
    }
    assert_null(missing);
    check_op_kept(c->kind, &error);
    check_no_error(error);
}

int main(void)
{
    g_autofree struct CMUnitTest *tests = g_new0(struct CMUnitTest, N_OPS * 32);
    g_autoptr(GPtrArray) cases = g_ptr_array_new();
    size_t n = 0;
    for (int kind = 0; kind < N_OPS; kind++) {
        int n_samples = check_op_n_samples((OpKind)kind);
        for (int i = -1; i < n_samples; i++) {
            Case *c = g_new0(Case, 1);
            c->kind = (OpKind)kind;
            c->sample = i;
            c->name = i < 0 ? g_strdup_printf("%s is complete", op_class(c->kind)->id)
                            : g_strdup_printf("%s sample %d", op_class(c->kind)->id, i);
            g_ptr_array_add(cases, c);
            tests[n++] = (struct CMUnitTest){
                .name = c->name, .test_func = i < 0 ? test_complete : test_sample, .initial_state = c};
        }
    }
    int failed = _cmocka_run_group_tests("ops", tests, n, NULL, NULL);
    for (guint i = 0; i < cases->len; i++) {
        g_free(((Case *)cases->pdata[i])->name);
        g_free(cases->pdata[i]);
    }
    return failed;
}
