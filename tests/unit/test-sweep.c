/* Sweep files: points in their order, ranges, cells that read back, presets, and what is refused. */
#include "tests/check.h"

#include <math.h>

#include "sim/base/error.h"
#include "sim/base/json-read.h"
#include "workloads/cases.h"
#include "workloads/sweep/evaluate.h"
#include "workloads/sweep/sweep-values.h"

#define BASE "\"base\": {\"model\": \"kimi-k3-mini\", \"cluster\": {\"preset\": \"h200-sxm\", \"nodes\": 1, \"gpus_per_node\": 8}}"

static json_t *plan_schema(void)
{
    g_autofree char *path = check_source_path("reports/schema/plan.schema.json");
    json_t *schema = json_load_file(path, 0, NULL);
    assert_non_null(schema);
    return schema;
}

static Sweep *sweep_of(const char *rest, GError **error)
{
    g_autoptr(json_t) schema = plan_schema();
    g_autofree char *text = g_strdup_printf("{" BASE "%s}", rest);
    return sweep_parse(text, "s.json", schema, error);
}

/* All values of a point, as "ep=1 chunk=0". */
static char *point_text(const Sweep *sweep, int64_t point)
{
    GString *text = g_string_new(NULL);
    for (guint i = 0; i < sweep->fields->len; i++) {
        const char *path = g_array_index(sweep->fields, SweepField, i).path;
        g_autofree char *cell = sweep_cell(path, sweep_value(sweep, point, i));
        g_string_append_printf(text, "%s%s", i > 0 ? " " : "", cell != NULL ? cell : "-");
    }
    return g_string_free(text, FALSE);
}

static void test_points(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Sweep) sweep = sweep_of(", \"grid\": {\"parallel.ep\": [1, 2], \"loss.seq_chunk\": [0, 64]},"
                                      "\"linked\": [{\"workload.seq_len\": [128, 256], \"workload.global_batch\": [16, 8]}],"
                                      "\"list\": [{}, {\"memory.recompute\": \"full\"}, {\"memory.recompute\": \"selective\","
                                      "\"memory.keep\": [\"matmul\", \"attention\"]}]",
                                      &error);
    check_no_error(error);
    check_int(sweep->n_points, 2 * 2 * 2 * 3);
    static const struct {
        int64_t point;
        const char *text;
    } cases[] = {
        {0, "1 0 128 16 - -"},          {1, "1 0 128 16 full -"}, {2, "1 0 128 16 selective matmul attention"},
        {3, "1 0 256 8 - -"},           {6, "1 64 128 16 - -"},   {12, "2 0 128 16 - -"},
        {23, "2 64 256 8 selective matmul attention"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = point_text(sweep, cases[i].point);
        check_string(text, cases[i].text);
    }
    g_autoptr(json_t) plan = sweep_plan(sweep, 23, &error);
    check_no_error(error);
    check_int(json_integer_value(json_object_get(json_object_get(plan, "workload"), "seq_len")), 256);
    check_string(json_string_value(json_object_get(json_object_get(plan, "memory"), "recompute")), "selective");
    g_autoptr(json_t) first = sweep_plan(sweep, 0, &error);
    assert_null(json_object_get(first, "memory")); /* null sets nothing */
    assert_null(json_object_get(sweep->base, "parallel")); /* and the base stays as it is */
}

static void test_ranges(void **state)
{
    (void)state;
    static const struct {
        const char *values, *expanded; /* NULL: an error, with the text below */
        const char *error;
    } cases[] = {
        {"[1, 2]", "[1,2]", NULL},
        {"{\"from\": 1, \"to\": 8, \"factor\": 2}", "[1,2,4,8]", NULL},
        {"{\"from\": 0, \"to\": 7, \"step\": 3}", "[0,3,6]", NULL},
        {"{\"from\": 0.1, \"to\": 0.3, \"step\": 0.1}", "[0.1,0.2,0.3]", NULL},
        {"[0, {\"from\": 4, \"to\": 16, \"factor\": 2}, null]", "[0,4,8,16,null]", NULL},
        {"{\"divisors\": 12}", "[1,2,3,4,6,12]", NULL},
        {"{\"divisors\": \"ranks\", \"from\": 2, \"to\": \"ranks / 2\"}", "[2,4]", NULL},
        {"{\"from\": \"parallel.ep\", \"to\": \"ranks\", \"factor\": 2}", "[1,2,4,8]", NULL},
        {"[{\"default\": \"eager\"}, \"fused\"]", "[{\"default\":\"eager\"},\"fused\"]", NULL},
        {"[]", NULL, "expected a list of values"},
        {"5", NULL, "expected a list of values"},
        {"{\"from\": 1}", NULL, "either \"step\" or \"factor\""},
        {"{\"from\": 1, \"to\": 2, \"step\": 1, \"factor\": 2}", NULL, "either \"step\" or \"factor\""},
        {"{\"from\": 3, \"to\": 2, \"step\": 1}", NULL, "runs upward"},
        {"{\"from\": 1, \"to\": 2, \"step\": 0}", NULL, "runs upward"},
        {"{\"from\": 0, \"to\": 2, \"factor\": 2}", NULL, "runs upward"},
        {"{\"from\": 1, \"to\": 2, \"factor\": 1}", NULL, "runs upward"},
        {"{\"from\": 1, \"to\": 1e9, \"step\": 1}", NULL, "more than 1000000 values"},
        {"{\"from\": 1, \"to\": 2, \"stp\": 1}", NULL, "a range has no \"stp\""},
        {"{\"divisors\": 7.5}", NULL, "whole number"},
        {"{\"divisors\": 7, \"from\": 2, \"to\": 6}", NULL, "no divisor"},
        {"{\"from\": 1, \"to\": \"ranks +\", \"factor\": 2}", NULL, "column 8"},
        {"{\"from\": 1, \"to\": \"memory.keep\", \"factor\": 2}", NULL, "is no number"},
        {"{\"from\": 1, \"to\": true, \"factor\": 2}", NULL, "an expression in quotes"},
        {"[2, 1, 2]", NULL, "2 stands there twice"},
    };
    g_autoptr(GError) error = NULL;
    g_autoptr(Sweep) sweep = sweep_of(", \"grid\": {\"parallel.ep\": [1]}", &error);
    check_no_error(error);
    g_autoptr(Session) session = session_new();
    g_autoptr(SweepNames) names = sweep_names_new(sweep, session);
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(json_t) values = json_loads(cases[i].values, JSON_DECODE_ANY, NULL);
        assert_non_null(values);
        g_autoptr(json_t) expanded = sweep_values_expand(values, names, sweep->base, &error);
        if (cases[i].expanded == NULL) {
            assert_null(expanded);
            check_error(&error, MOESIM_ERROR_INPUT, cases[i].error);
            continue;
        }
        check_no_error(error);
        char *text = json_dumps(expanded, JSON_COMPACT | JSON_REAL_PRECISION(12));
        check_string(text, cases[i].expanded);
        free(text);
    }
}

/* Every kind of value, written as a cell, reads back as itself. */
static void test_cells(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value;
    } cases[] = {
        {"parallel.ep", "8"},
        {"workload.routing.exponent", "0.1"},
        {"memory.recompute", "\"full\""},
        {"model", "\"8\""},
        {"model", "\"true\""},
        {"model", "\"null\""},
        {"model", "\"\""},
        {"model", "\"a b\""},
        {"model", "\"[1\""},
        {"model", "\"=1+1\""},
        {"model", "\"a\\\"b,c\\nd\""},
        {"parallel.fsdp.reshard_after_forward", "false"},
        {"kernels", "{\"default\": \"eager\", \"kda\": \"fused\"}"},
        {"memory.keep", "[\"matmul\", \"attention\"]"},
        {"memory.keep", "[\"matmul\"]"},
        {"memory.keep", "[\"a b\", \"c\"]"},
        {"memory.keep", "[]"},
        {"parallel.pipeline.layers_per_stage", "[1, 2, 3]"},
        {"workload.routing.order", "[2, 0, 1]"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(json_t) value = json_loads(cases[i].value, JSON_DECODE_ANY, NULL);
        assert_non_null(value);
        g_autofree char *cell = sweep_cell(cases[i].path, value);
        g_autoptr(json_t) back = cases_cell_value(cases[i].path, cell, &error);
        check_no_error(error);
        if (!json_equal(back, value)) {
            print_error("%s as \"%s\"\n", cases[i].value, cell);
            fail();
        }
    }
    assert_null(sweep_cell("parallel.ep", json_null()));
}

/* Constraints see fields that are set, defaults, open degrees, sizes, and facts. */
static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *condition;
        gboolean allowed;
    } cases[] = {
        {"ranks == 8 and nodes == 1 and gpus_per_node == 8", TRUE},
        {"parallel.ep == 2", TRUE},
        {"parallel.dp_shard == 8", TRUE},
        {"parallel.dp_replicate == 1", TRUE},
        {"memory.recompute == 'none'", TRUE},
        {"model == 'kimi-k3-mini' and model.config == 'kimi-k3-mini'", TRUE},
        {"experts > 1 and experts_per_token > 0 and layers > 1 and hidden > 1 and vocab > 1", TRUE},
        {"workload.global_batch == null", TRUE},
        {"workload.seq_len != 4096", FALSE},
        {"parallel.fsdp.reshard_after_forward", TRUE},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *rest =
            g_strdup_printf(", \"grid\": {\"parallel.ep\": [2]}, \"constraints\": [\"%s\"]", cases[i].condition);
        g_autoptr(Sweep) sweep = sweep_of(rest, &error);
        check_no_error(error);
        g_autoptr(SweepWorker) worker = sweep_worker_new(sweep);
        gboolean allowed;
        g_autoptr(json_t) plan = sweep_plan(sweep, 0, &error);
        assert_true(sweep_names_allow(worker->names, plan, &allowed, &error));
        check_int(allowed, cases[i].allowed);
        check_int(sweep_point_has_row(worker, 0), cases[i].allowed);
    }
}

/* A constraint without a truth value leaves the point in, as a row that says why. */
static void test_no_truth(void **state)
{
    (void)state;
    static const struct {
        const char *rest, *reason;
    } cases[] = {
        {", \"grid\": {\"parallel.ep\": [1]}, \"constraints\": [\"workload.global_batch > 1\"]",
         "constraint \"workload.global_batch > 1\": column 1: null (it has no value) where a number belongs"},
        {", \"grid\": {\"model\": [\"no-such-model\"]}, \"constraints\": [\"experts > 1\"]", "no-such-model"},
        {", \"grid\": {\"cluster.preset\": [\"h300\"]}, \"constraints\": [\"ranks > 1\"]", "h300"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Sweep) sweep = sweep_of(cases[i].rest, &error);
        check_no_error(error);
        g_autoptr(SweepWorker) worker = sweep_worker_new(sweep);
        SweepOutcome outcome;
        assert_true(sweep_point_has_row(worker, 0));
        sweep_evaluate(worker, 0, &outcome);
        check_int(outcome.status, SWEEP_INVALID);
        check_contains(outcome.reason, cases[i].reason);
        sweep_outcome_clear(&outcome);
    }
}

/* Every preset suits every model: it loads, and has a combination that is a plan. */
static void test_presets(void **state)
{
    (void)state;
    static const char *const bases[] = {"kimi-k3-pretrain-1024", "llama-3.1-70b-64", "qwen3-30b-8"};
    g_auto(GStrv) names = sweep_preset_names();
    g_autoptr(json_t) schema = plan_schema();
    assert_true(g_strv_length(names) >= 4);
    for (char **name = names; *name != NULL; name++) {
        for (size_t i = 0; i < G_N_ELEMENTS(bases); i++) {
            g_autoptr(GError) error = NULL;
            g_autofree char *file = g_strdup_printf("workloads/presets/%s.json", bases[i]);
            g_autofree char *path = check_source_path(file);
            g_autofree char *text = g_strdup_printf("{\"base\": \"%s\", \"presets\": \"%s\"}", path, *name);
            g_autoptr(Sweep) sweep = sweep_parse(text, "s.json", schema, &error);
            check_no_error(error);
            g_autoptr(SweepWorker) worker = sweep_worker_new(sweep);
            int64_t n_rows = 0;
            for (int64_t point = 0; point < MIN(sweep->n_points, 3000) && n_rows == 0; point++) {
                n_rows += sweep_point_has_row(worker, point) ? 1 : 0;
            }
            check_int(n_rows, 1);
        }
    }
}

static void test_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *rest, *error;
    } cases[] = {
        {", \"grid\": {\"parallel.epp\": [1]}", "s.json:1:129: grid.parallel.epp: parallel.epp: plans have no field \"epp\"; did you mean \"ep\"?"},
        {", \"grid\": {\"parallel\": [{}], \"parallel.ep\": [1]}", "parallel.ep and parallel set the same field"},
        {", \"grid\": {\"parallel.ep\": [1]}, \"linked\": [{\"parallel.ep\": [1]}]", "parallel.ep is swept twice"},
        {", \"grid\": {\"model.hidden\": [1]}", "model.overrides"},
        {", \"linked\": [{}]", "names no field"},
        {", \"linked\": {}", "linked"},
        {", \"list\": [{}, {}]", "names no field"},
        {", \"list\": 3", "list"},
        {", \"grid\": 3", "grid"},
        {", \"grid\": {\"parallel.ep\": [1]}, \"constraints\": [3]", "entry 1 is no condition"},
        {", \"grid\": {\"parallel.ep\": [1]}, \"constraints\": \"x\"", "expected a list"},
        {", \"grid\": {\"parallel.ep\": [1]}, \"objective\": {\"max\": \"mfu\"}", "objective: expected a result path"},
        {", \"grid\": {\"parallel.ep\": [1]}, \"pareto\": [\"mfu\"]", "two or more"},
        {", \"grid\": {\"parallel.ep\": [1]}, \"pareto\": [1, 2]", "entry 1"},
        {", \"grid\": {\"parallel.ep\": [1]}, \"top\": -1", "top"},
        {", \"grid\": {\"parallel.ep\": [1]}, \"columns\": [3]", "entry 1"},
        {", \"presets\": [3]", "names of presets"},
        {"", "sweeps over nothing"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Sweep) sweep = sweep_of(cases[i].rest, &error);
        if (sweep != NULL) {
            print_error("taken: %s\n", cases[i].rest);
        }
        assert_null(sweep);
        check_contains(error != NULL ? error->message : NULL, "s.json:1:");
        check_error(&error, MOESIM_ERROR_INPUT, cases[i].error);
    }
    static const char *const axes[] = {"workload.seq_len", "workload.micro_batch", "workload.global_batch", "loss.seq_chunk"};
    g_autoptr(GString) huge = g_string_new(", \"grid\": {");
    for (size_t i = 0; i < G_N_ELEMENTS(axes); i++) {
        g_string_append_printf(huge, "%s\"%s\": {\"from\": 1, \"to\": 100000, \"step\": 1}", i > 0 ? ", " : "", axes[i]);
    }
    g_string_append_c(huge, '}');
    g_autoptr(GError) error = NULL;
    assert_null(sweep_of(huge->str, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "more than 2^63 combinations");
}

/* What the rows depend on is in the fingerprint, what they do not is not. */
static void test_fingerprint(void **state)
{
    (void)state;
    static const struct {
        const char *rest;
        gboolean same;
    } cases[] = {
        {", \"grid\": {\"parallel.ep\": [1, 2], \"loss.seq_chunk\": [0]}, \"top\": 3, \"objective\": \"mfu\"", TRUE},
        {", \"grid\": {\"parallel.ep\": [1, 2, 4], \"loss.seq_chunk\": [0]}", FALSE},
        {", \"grid\": {\"loss.seq_chunk\": [0], \"parallel.ep\": [1, 2]}", FALSE},
        {", \"grid\": {\"parallel.ep\": [1, 2], \"loss.seq_chunk\": [0]}, \"constraints\": [\"ranks > 1\"]", FALSE},
        {", \"grid\": {\"parallel.ep\": [1, 2], \"loss.seq_chunk\": [0]}, \"columns\": [\"mfu\"]", FALSE},
    };
    g_autoptr(GError) error = NULL;
    g_autoptr(Sweep) first = sweep_of(", \"grid\": {\"parallel.ep\": [1, 2], \"loss.seq_chunk\": [0]}", &error);
    check_no_error(error);
    g_autofree char *want = sweep_fingerprint(first);
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Sweep) other = sweep_of(cases[i].rest, &error);
        check_no_error(error);
        g_autofree char *have = sweep_fingerprint(other);
        check_int(g_str_equal(have, want), cases[i].same);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_points), cmocka_unit_test(test_ranges),   cmocka_unit_test(test_cells),
        cmocka_unit_test(test_names),  cmocka_unit_test(test_no_truth), cmocka_unit_test(test_presets),
        cmocka_unit_test(test_wrong),  cmocka_unit_test(test_fingerprint),
    };
    return cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
}
