/* Cases: cells, nesting, contradictions, measured columns, and where mistakes are said to be. */
#include "tests/check.h"

#include "sim/base/error.h"
#include "sim/base/json-read.h"
#include "workloads/cases.h"

typedef struct CellCase {
    const char *name;
    const char *path, *cell;
    const char *json; /* NULL: an error that holds `message` */
    const char *message;
} CellCase;

static const CellCase cells[] = {
    {"whole number", "parallel.ep", "64", "64", NULL},
    {"negative number", "parallel.dp_shard", "-1", "-1", NULL},
    {"real number", "workload.routing.exponent", "0.5", "0.5", NULL},
    {"truth value", "parallel.fsdp.reshard_after_forward", "false", "false", NULL},
    {"null", "workload.lora.rank", "null", "null", NULL},
    {"bare word", "cluster.preset", "h200-sxm", "\"h200-sxm\"", NULL},
    {"word that begins with a digit", "parallel.pipeline.schedule", "1f1b", "\"1f1b\"", NULL},
    {"size with a unit", "memory.cache.hbm_bytes", "8 GiB", "\"8 GiB\"", NULL},
    {"quoted word", "cluster.preset", "\"x y\"", "\"x y\"", NULL},
    {"path", "model.config", "../models/a.json", "\"../models/a.json\"", NULL},
    {"list of one", "memory.keep", "matmul", "[\"matmul\"]", NULL},
    {"list", "memory.keep", "matmul  attention ", "[\"matmul\", \"attention\"]", NULL},
    {"list of numbers", "parallel.pipeline.layers_per_stage", "3 4", "[3, 4]", NULL},
    {"list as JSON", "workload.lora.targets", "[\"shared\"]", "[\"shared\"]", NULL},
    {"object as JSON", "kernels", "{\"default\":\"eager\"}", "{\"default\": \"eager\"}", NULL},
    {"number out of range", "workload.seq_len", "1e999", NULL, "no JSON value"},
    {"integer out of range", "workload.seq_len", "99999999999999999999", NULL, "no JSON value"},
    {"number in another notation", "workload.seq_len", "0x10", NULL, "no JSON value"},
    {"broken JSON", "kernels", "{\"a\":", NULL, "no JSON value"},
    {"not UTF-8", "cluster.preset", "\xff", NULL, "UTF-8"},
};

static void test_cell(void **state)
{
    const CellCase *c = *state;
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) value = cases_cell_value(c->path, c->cell, &error);
    if (c->json == NULL) {
        assert_null(value);
        check_error(&error, MOESIM_ERROR_INPUT, c->message);
        return;
    }
    check_no_error(error);
    g_autofree char *text = json_dumps(value, JSON_ENCODE_ANY);
    check_string(text, c->json);
}

typedef struct TableCase {
    const char *name;
    const char *csv;
    const char *plan; /* of row 0; NULL: an error that holds `message` */
    const char *message;
} TableCase;

static const TableCase tables[] = {
    {"nested", "id,parallel.ep,parallel.dp_shard\na,8,16\n", "{\"parallel\": {\"ep\": 8, \"dp_shard\": 16}}", NULL},
    {"empty cells are left out", "id,parallel.ep,loss.seq_chunk\na,,1\n", "{\"loss\": {\"seq_chunk\": 1}}", NULL},
    {"overrides beside a config", "model.config,model.overrides.num_hidden_layers\nm.json,4\n",
     "{\"model\": {\"config\": \"m.json\", \"overrides\": {\"num_hidden_layers\": 4}}}", NULL},
    {"overrides before a model's name", "model.overrides.num_hidden_layers,model\n4,kimi-k3\n",
     "{\"model\": {\"config\": \"kimi-k3\", \"overrides\": {\"num_hidden_layers\": 4}}}", NULL},
    {"model by name", "model\nkimi-k3\n", "{\"model\": \"kimi-k3\"}", NULL},
    {"source and measured are no plan", "source,measured.step_time_s,measured.rank,loss.seq_chunk\nx,1.5,0,2\n",
     "{\"loss\": {\"seq_chunk\": 2}}", NULL},
    {"model twice", "model,model.config\na,b\n", NULL, "t.csv:1: columns model and model.config"},
    {"field and its inside", "kernels,kernels.kda\neager,fused\n", NULL, "columns kernels and kernels.kda"},
    {"no rows", "id,parallel.ep\n", NULL, "t.csv: no rows"},
    {"no path", "parallel..ep\n1\n", NULL, "t.csv:2: parallel..ep: 'parallel..ep' is no dotted path"},
    {"bad number", "id,parallel.ep\n\na,1e999\n", NULL, "t.csv:3: parallel.ep: '1e999' is no JSON value"},
};

static void test_table(void **state)
{
    const TableCase *c = *state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Cases) cases = cases_parse(c->csv, "t.csv", &error);
    g_autoptr(json_t) plan = cases != NULL ? cases_plan(cases, 0, &error) : NULL;
    if (c->plan == NULL) {
        assert_null(plan);
        check_error(&error, MOESIM_ERROR_INPUT, c->message);
        return;
    }
    check_no_error(error);
    g_autofree char *text = json_dumps(plan, 0);
    check_string(text, c->plan);
}

static void test_measured(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Cases) cases = cases_parse("id,measured.time.forward_s,measured.rank,measured.mfu\n"
                                         "a,0.25,1,\n"
                                         ",fast,x,0.5\n",
                                         "dir/t.csv", &error);
    check_no_error(error);
    check_int(cases_n_rows(cases), 2);
    check_int(cases_n_measured(cases), 2);
    check_string(cases_measured_path(cases, 0), "time.forward_s");
    check_string(cases_measured_path(cases, 1), "mfu");
    check_string(cases_base_dir(cases), "dir");
    check_string(cases_id(cases, 0), "a");
    check_string(cases_id(cases, 1), "row 2");
    check_string(cases_place(cases, 1), "dir/t.csv:3");
    double value = 0;
    int64_t rank = 7;
    assert_true(cases_measured(cases, 0, 0, &value, &error));
    check_close(value, 0.25, 0);
    assert_true(cases_measured(cases, 0, 1, &value, &error));
    assert_true(isnan(value));
    assert_true(cases_measured_rank(cases, 0, &rank, &error));
    check_int(rank, 1);
    assert_false(cases_measured(cases, 1, 0, &value, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "dir/t.csv:3");
    assert_false(cases_measured_rank(cases, 1, &rank, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "dir/t.csv:3: measured.rank: 'x' is no rank");
    check_int(rank, 1);
}

int main(void)
{
    enum { N_CELLS = G_N_ELEMENTS(cells), N_TABLES = G_N_ELEMENTS(tables) };
    struct CMUnitTest tests[N_CELLS + N_TABLES + 1] = {{0}};
    size_t n = 0;
    for (size_t i = 0; i < N_CELLS; i++) {
        tests[n++] = (struct CMUnitTest){cells[i].name, test_cell, NULL, NULL, (void *)(guintptr)&cells[i]};
    }
    for (size_t i = 0; i < N_TABLES; i++) {
        tests[n++] = (struct CMUnitTest){tables[i].name, test_table, NULL, NULL, (void *)(guintptr)&tables[i]};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_measured);
    return _cmocka_run_group_tests("cases", tests, n, NULL, NULL);
}
