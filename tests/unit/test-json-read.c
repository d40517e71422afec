#include "tests/check.h"

#include "sim/base/error.h"
#include "sim/base/json-read.h"

/* Reads the fields of a small made-up plan: every getter once. */
static gboolean read_plan(JsonDoc *doc, GError **error)
{
    static const char *const kinds[] = {"balanced", "zipf", "measured"};
    JsonObject *plan = json_doc_open(doc, error);
    if (plan == NULL) {
        return FALSE;
    }
    json_object_string(plan, "model", "none");
    JsonObject *parallel = json_object_child(plan, "parallel");
    json_object_int(parallel, "ep", 1, 1024, 1);
    json_object_int(parallel, "dp_shard", -1, G_MAXINT64, -1);
    JsonObject *fsdp = json_object_child(parallel, "fsdp");
    json_object_bool(fsdp, "reshard", TRUE);
    json_object_end(fsdp);
    json_object_end(parallel);
    for (size_t i = 0; i < json_object_length(plan, "stages"); i++) {
        JsonObject *stage = json_object_item(plan, "stages", i);
        json_object_int(stage, "layers", 0, G_MAXINT64, 0);
        json_object_end(stage);
    }
    json_object_choice(plan, "routing", kinds, G_N_ELEMENTS(kinds), 0);
    json_object_number(plan, "exponent", 0, 10, 0.5);
    json_object_bytes(plan, "cache", 0);
    json_object_rate(plan, "link", 0);
    json_object_flops_rate(plan, "peak", 0);
    json_object_time(plan, "latency", 0);
    json_object_ignore(plan, "comment");
    return json_object_close(plan, FALSE, error);
}

typedef struct Case {
    const char *name;
    const char *text;
    const char *error; /* NULL: no error */
} Case;

static const Case cases[] = {
    {"empty object", "{}", NULL},
    {"nulls are absent", "{\"parallel\": null, \"exponent\": null}", NULL},
    {"everything",
     "{\"model\": \"m\", \"parallel\": {\"ep\": 8, \"dp_shard\": -1, \"fsdp\": {\"reshard\": false}}, \"stages\": "
     "[{\"layers\": 3}, {}], \"routing\": \"zipf\", \"exponent\": 1, \"cache\": \"8 GiB\", \"link\": 5e9, \"peak\": "
     "\"989 TFLOP/s\", \"latency\": \"11 us\", \"comment\": [1, {}]}",
     NULL},
    {"whole reals are integers", "{\"parallel\": {\"ep\": 8.0}}", NULL},
    {"not an object", " [1]", "t.json:1:2: must be an object"},
    {"syntax", "{\n \"a\": }", "t.json:2:7: unexpected token near '}'"},
    {"no text", "", "t.json:1:1: "},
    {"garbage behind", "{} x", "t.json:1:4: end of file expected"},
    {"twice", "{\"model\": \"a\", \"model\": \"b\"}", "duplicate object key"},
    {"number out of range", "{\"exponent\": 1e400}", "t.json:1:"},
    {"integer out of range", "{\"cache\": 99999999999999999999}", "too large: a whole one has at most 64 bits"},
    {"NaN when strict", "{\"exponent\": NaN}", "t.json:1:"},
    {"unknown at the root", "{\n  \"modle\": \"x\"\n}", "t.json:2:3: modle: unknown; did you mean \"model\"?"},
    {"unknown far from all", "{\"parallel\": {\"qqqqqq\": 1}}",
     "t.json:1:15: parallel.qqqqqq: unknown; known here: ep, dp_shard, fsdp"},
    {"unknown inside a list", "{\"stages\": [{}, {\"layer\": 1}]}",
     "t.json:1:18: stages[1].layer: unknown; did you mean \"layers\"?"},
    {"type of an integer", "{\"parallel\": {\n\"ep\": \"x\"}}",
     "t.json:2:7: parallel.ep: must be an integer from 1 to 1024, not \"x\""},
    {"integer too small", "{\"parallel\": {\"ep\": 0}}", "parallel.ep: must be an integer from 1 to 1024, not 0"},
    {"integer not whole", "{\"parallel\": {\"ep\": 1.5}}", "not 1.5"},
    {"integer without an upper bound", "{\"parallel\": {\"dp_shard\": -2}}", "an integer of at least -1, not -2"},
    {"bool", "{\"parallel\": {\"fsdp\": {\"reshard\": 1}}}", "parallel.fsdp.reshard: must be true or false, not 1"},
    {"string", "{\"model\": {\"a\": 1}}", "model: must be a string, not {\"a\":1}"},
    {"long value", "{\"model\": [\"01234567890123456789012345678901234567890123456789012345678901234567890123456789\"]}",
     "must be a string, not [\"012345678901234567890123456789012345678901234567890123456789012345678901234567…"},
    {"long key", "{\"01234567890123456789012345678901234567890123456789012345678901234567890123456789x\": 1}", "t.json:1:2: 01234567890123456789012345678901234567890123456789012345678901234567890123456789…: unknown; known here:"},
    {"object", "{\"parallel\": 3}", "t.json:1:14: parallel: must be an object, not 3"},
    {"array", "{\"stages\": {}}", "stages: must be an array, not {}"},
    {"element", "{\"stages\": [{}, 7]}", "t.json:1:17: stages[1]: must be an object, not 7"},
    {"choice", "{\"routing\": \"zpif\"}",
     "routing: must be \"balanced\", \"zipf\" or \"measured\", not \"zpif\"; did you mean \"zipf\"?"},
    {"number", "{\"exponent\": 11}", "exponent: must be a number from 0 to 10, not 11"},
    {"size", "{\"cache\": \"8 Gigs\"}", "t.json:1:11: cache: \"8 Gigs\" is not a size"},
    {"negative size", "{\"cache\": -1}", "cache: must be a number of bytes or a size"},
    {"rate", "{\"link\": \"8 GB\"}", "link: \"8 GB\" is not a rate"},
    {"compute rate", "{\"peak\": true}", "peak: must be FLOPs per second or a rate"},
    {"time", "{\"latency\": \"8\"}", "latency: \"8\" is not a time"},
    {"the first mistake is reported", "{\"model\": 1, \"parallel\": {\"ep\": 0, \"x\": 1}}", "t.json:1:11: model:"},
    {"a child's mistake comes before the parent's unknown key", "{\"zzz\": 1, \"parallel\": {\"xx\": 1}}",
     "parallel.xx: unknown"},
};

static void test_case(void **state)
{
    const Case *c = *state;
    g_autoptr(GError) error = NULL;
    g_autoptr(JsonDoc) doc = json_doc_parse(c->text, "t.json", FALSE, &error);
    gboolean done = doc != NULL && read_plan(doc, &error);
    if (c->error == NULL) {
        check_no_error(error);
        assert_true(done);
    } else {
        assert_false(done);
        check_error(&error, MOESIM_ERROR_INPUT, c->error);
    }
}

static void test_values(void **state)
{
    (void)state;
    static const char *const kinds[] = {"a", "b"};
    g_autoptr(GError) error = NULL;
    g_autoptr(JsonDoc) doc = json_doc_parse(
        "{\"i\": 5000000000, \"n\": 0.25, \"m\": 3, \"b\": true, \"s\": \"NaN\", \"c\": \"b\", \"q\": \"2 KiB\", "
        "\"t\": 17, \"r\": \"8 Gb/s\", \"inf\": [NaN, -Infinity, Infinity, \"\\\"NaN\"]}",
        "t.json", TRUE, &error);
    check_no_error(error);
    JsonObject *object = json_doc_open(doc, &error);
    check_int(json_object_int(object, "i", 0, G_MAXINT64, 1), 5000000000);
    check_close(json_object_number(object, "n", -INFINITY, INFINITY, 1), 0.25, 0);
    check_close(json_object_number(object, "m", 0, INFINITY, 1), 3, 0);
    check_int(json_object_bool(object, "b", FALSE), TRUE);
    check_string(json_object_string(object, "s", NULL), "NaN");
    check_int(json_object_choice(object, "c", kinds, 2, 0), 1);
    check_int(json_object_bytes(object, "q", 0), 2048);
    check_int(json_object_time(object, "t", 0), 17);
    check_close(json_object_rate(object, "r", 0), 1e9, 0);
    check_int(json_object_int(object, "absent", 0, 9, 4), 4);
    check_string(json_object_key(object, 1), "n");
    assert_null(json_object_key(object, 10));
    assert_true(json_object_has(object, "inf"));
    json_t *list = json_object_raw(object, "inf");
    check_int(json_array_size(list), 4);
    assert_true(json_is_null(json_array_get(list, 0)) && json_is_null(json_array_get(list, 2)));
    check_string(json_string_value(json_array_get(list, 3)), "\"NaN");
    g_autofree char *path = json_object_path(object, "q");
    check_string(path, "q");
    assert_true(json_object_ok(object));
    assert_true(json_object_close(object, FALSE, &error));
}

static void test_own_mistake(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) value = json_pack("{s:{s:i}}", "parallel", "ep", 7);
    g_autoptr(JsonDoc) doc = json_doc_from_value(value, "cases.csv:3");
    JsonObject *object = json_doc_open(doc, &error);
    JsonObject *parallel = json_object_child(object, "parallel");
    int64_t ep = json_object_int(parallel, "ep", 1, 64, 1);
    json_object_fail(parallel, "ep", "%d does not divide 64", (int)ep);
    json_object_fail(parallel, "ep", "too late");
    assert_false(json_object_ok(object));
    check_int(json_object_int(parallel, "ep", 1, 64, 3), 3); /* sticks */
    assert_null(json_object_child(object, "parallel"));
    assert_false(json_object_close(parallel, FALSE, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "cases.csv:3: parallel.ep: 7 does not divide 64");
    assert_false(json_object_close(object, FALSE, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "7 does not divide 64");
}

static void test_tolerant(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(JsonDoc) doc = json_doc_parse("{\"a\": 1, \"b\": 2}", "t.json", FALSE, &error);
    JsonObject *object = json_doc_open(doc, &error);
    assert_true(json_object_close(object, TRUE, &error));
    check_no_error(error);
}

static void test_load(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    char *dir = check_make_dir();
    g_autofree char *path = check_write_file(dir, "x.json", "{\"a\": 1}");
    g_autoptr(JsonDoc) doc = json_doc_load(path, FALSE, &error);
    check_no_error(error);
    check_string(json_doc_name(doc), path);
    assert_true(json_is_object(json_doc_root(doc)));
    g_autofree char *absent = g_build_filename(dir, "absent.json", NULL);
    assert_null(json_doc_load(absent, FALSE, &error));
    check_error(&error, MOESIM_ERROR_IO, absent);
    check_remove_dir(dir);
}

int main(void)
{
    enum { N = G_N_ELEMENTS(cases), N_MORE = 4 };
    const struct CMUnitTest more[N_MORE] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_own_mistake),
        cmocka_unit_test(test_tolerant),
        cmocka_unit_test(test_load),
    };
    struct CMUnitTest tests[N + N_MORE];
    memset(tests, 0, sizeof tests);
    for (size_t i = 0; i < N; i++) {
        tests[i] = (struct CMUnitTest){
            .name = cases[i].name, .test_func = test_case, .initial_state = (void *)(guintptr)&cases[i]};
    }
    memcpy(tests + N, more, sizeof more);
    return cmocka_run_group_tests_name("json-read", tests, NULL, NULL);
}
