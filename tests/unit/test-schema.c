/*
 * The plan's JSON Schema against what reads plans: the same field names in both, and every preset within it.
 *
 * The reader's fields are taken from its source: each getter, and each refusal of a value that is not modelled yet,
 * names its key as a string.
 */
#include "tests/check.h"

#include "sim/base/json-read.h"
#include "workloads/draw.h"
#include "workloads/sweep/sweep.h"

static json_t *load(const char *path)
{
    g_autofree char *full = check_source_path(path);
    json_error_t problem;
    json_t *value = json_load_file(full, JSON_REJECT_DUPLICATES, &problem);
    if (value == NULL) {
        print_error("%s:%d: %s\n", path, problem.line, problem.text);
    }
    assert_non_null(value);
    return value;
}

/* Adds the names of all properties of a schema, those of alternatives included. */
static void collect_properties(json_t *schema, GHashTable *names)
{
    const char *key;
    json_t *value;
    json_object_foreach (json_object_get(schema, "properties"), key, value) {
        g_hash_table_add(names, g_strdup(key));
        collect_properties(value, names);
    }
    size_t i;
    json_array_foreach (json_object_get(schema, "oneOf"), i, value) {
        collect_properties(value, names);
    }
}

static void collect_reader_keys(const char *path, GHashTable *names)
{
    g_autofree char *text = NULL;
    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_autoptr(GRegex) call =
        g_regex_new("(?:json_object_(?:int|number|bool|string|bytes|rate|time|choice|raw|child)|refuse_\\w+|"
                    "read_\\w+)\\(\\w+, \"([\\w$]+)\"",
                    0, 0, NULL);
    g_autoptr(GMatchInfo) match = NULL;
    g_regex_match(call, text, 0, &match);
    for (; g_match_info_matches(match); g_match_info_next(match, NULL)) {
        g_hash_table_add(names, g_match_info_fetch(match, 1));
    }
}

static void check_subset(GHashTable *names, GHashTable *of, const char *what)
{
    GHashTableIter iter;
    gpointer name;
    g_hash_table_iter_init(&iter, names);
    while (g_hash_table_iter_next(&iter, &name, NULL)) {
        if (!g_hash_table_contains(of, name)) {
            print_error("%s: %s\n", what, (const char *)name);
            fail();
        }
    }
}

static void test_same_fields(void **state)
{
    (void)state;
    g_autoptr(json_t) schema = load("reports/schema/plan.schema.json");
    g_autoptr(GHashTable) known = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autoptr(GHashTable) read = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    collect_properties(schema, known);
    g_autofree char *folder = check_source_path("workloads/plan");
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    assert_non_null(dir);
    const char *name;
    while ((name = g_dir_read_name(dir)) != NULL) {
        if (g_str_has_prefix(name, "plan") && g_str_has_suffix(name, ".c")) {
            g_autofree char *path = g_build_filename(folder, name, NULL);
            collect_reader_keys(path, read);
        }
    }
    assert_true(g_hash_table_size(read) > 40);
    check_subset(read, known, "read, but not in the schema");
    check_subset(known, read, "in the schema, but not read");
}

/* Fields that drawn plans leave alone: those of one value, sizes of the machine, files, and what only times or loads know. */
static const char *const undrawn[] = {
    "$schema",         "_note",       "model.overrides",   "cluster.file",      "cluster.nodes",          "parallel.dp_shard",
    "parallel.etp",    "parallel.tp", "parallel.cp",       "parallel.pp",       "workload.image_tokens",  "workload.routing.load_file",
    "workload.routing.sample_tokens", "workload.routing.replicas", "moe.balance_steps", "moe.balance_rate", "moe.replace_every",
    "precision.compute",
};

static gboolean is_drawn(const char *path)
{
    for (int i = 0; i < draw_n_fields(); i++) {
        if (strcmp(draw_field(i)->path, path) == 0) {
            return TRUE;
        }
    }
    return FALSE;
}

/* Checks the leaves below a schema. Returns how many. */
static int check_drawn(json_t *schema, const char *prefix)
{
    int n = 0;
    size_t a;
    json_t *value, *choice, *properties = json_object_get(schema, "properties");
    const char *key;
    json_array_foreach (json_object_get(schema, "oneOf"), a, choice) {
        n += check_drawn(choice, prefix);
    }
    json_object_foreach (properties, key, value) {
        g_autofree char *path = prefix[0] != '\0' ? g_strdup_printf("%s.%s", prefix, key) : g_strdup(key);
        int below = check_drawn(value, path);
        gboolean listed = FALSE;
        for (size_t i = 0; i < G_N_ELEMENTS(undrawn); i++) {
            listed = listed || strcmp(undrawn[i], path) == 0;
        }
        if (below == 0 && is_drawn(path) == listed) {
            print_error("%s: %s\n", path, listed ? "drawn, but listed as left alone" : "a field that no drawn plan has (workloads/draw.c)");
            fail();
        }
        n += below > 0 ? below : 1;
    }
    return n;
}

static void test_drawn_fields(void **state)
{
    (void)state;
    g_autoptr(json_t) schema = load("reports/schema/plan.schema.json");
    assert_true(check_drawn(schema, "") > 60);
}

/* As much of a validator as the schema's own words need. */
static gboolean conforms(json_t *value, json_t *schema);

static gboolean type_is(json_t *value, const char *type)
{
    return type == NULL || (strcmp(type, "object") == 0 && json_is_object(value)) ||
           (strcmp(type, "array") == 0 && json_is_array(value)) ||
           (strcmp(type, "string") == 0 && json_is_string(value)) ||
           (strcmp(type, "integer") == 0 && json_is_integer(value)) ||
           (strcmp(type, "number") == 0 && json_is_number(value)) ||
           (strcmp(type, "boolean") == 0 && json_is_boolean(value));
}

static gboolean object_conforms(json_t *object, json_t *schema)
{
    const char *key;
    json_t *value, *rest = json_object_get(schema, "additionalProperties");
    json_object_foreach (object, key, value) {
        json_t *inner = json_object_get(json_object_get(schema, "properties"), key);
        if (inner != NULL ? !conforms(value, inner) : json_is_false(rest) || !conforms(value, rest)) {
            return FALSE;
        }
    }
    size_t i;
    json_array_foreach (json_object_get(schema, "required"), i, value) {
        if (json_object_get(object, json_string_value(value)) == NULL) {
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean conforms(json_t *value, json_t *schema)
{
    json_t *item, *constant = json_object_get(schema, "const"), *least = json_object_get(schema, "minimum");
    json_t *not = json_object_get(schema, "not"), *one_of = json_object_get(schema, "oneOf");
    json_t *choices = json_object_get(schema, "enum");
    size_t i, n_equal = 0, n_matches = 0;
    if (!type_is(value, json_string_value(json_object_get(schema, "type"))) ||
        (constant != NULL && !json_equal(value, constant)) ||
        (least != NULL && json_number_value(value) < json_number_value(least)) ||
        (not != NULL && conforms(value, not )) || (json_is_object(value) && !object_conforms(value, schema))) {
        return FALSE;
    }
    json_array_foreach (value, i, item) {
        if (!conforms(item, json_object_get(schema, "items"))) {
            return FALSE;
        }
    }
    json_array_foreach (choices, i, item) {
        n_equal += json_equal(value, item) ? 1 : 0;
    }
    json_array_foreach (one_of, i, item) {
        n_matches += conforms(value, item) ? 1 : 0;
    }
    return (choices == NULL || n_equal == 1) && (one_of == NULL || n_matches == 1);
}

static void test_presets(void **state)
{
    (void)state;
    g_autoptr(json_t) schema = load("reports/schema/plan.schema.json");
    g_autofree char *folder = check_source_path("workloads/presets");
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    const char *name;
    int n = 0;
    while ((name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *path = g_build_filename("workloads/presets", name, NULL);
        g_autoptr(json_t) plan = load(path);
        if (!conforms(plan, schema)) {
            print_error("%s does not conform\n", path);
            fail();
        }
        n++;
    }
    assert_true(n > 0);
}

static void test_refusals(void **state)
{
    (void)state;
    g_autoptr(json_t) schema = load("reports/schema/plan.schema.json");
    static const char *const wrong[] = {
        "{}",
        "{\"model\": \"a\"}",
        "{\"model\": \"a\", \"cluster\": {\"preset\": \"b\", \"file\": \"c\"}}",
        "{\"model\": \"a\", \"cluster\": {\"preset\": \"b\"}, \"epoch_num\": 3}",
        "{\"model\": \"a\", \"cluster\": {\"preset\": \"b\"}, \"parallel\": {\"tp\": 2}}",
        "{\"model\": \"a\", \"cluster\": {\"preset\": \"b\"}, \"parallel\": {\"dp_shard\": 0}}",
        "{\"model\": {\"config\": \"a\", \"override\": {}}, \"cluster\": {\"preset\": \"b\"}}",
        "{\"model\": \"a\", \"cluster\": {\"preset\": \"b\"}, \"kernels\": {\"kda\": \"fast\"}}",
    };
    for (size_t i = 0; i < G_N_ELEMENTS(wrong); i++) {
        g_autoptr(json_t) plan = json_loads(wrong[i], 0, NULL);
        if (conforms(plan, schema)) {
            print_error("conforms: %s\n", wrong[i]);
            fail();
        }
    }
}

/* The schema of sweeps names every preset, every preset keeps to it, and so do the examples. */
static void test_sweeps(void **state)
{
    (void)state;
    g_autoptr(json_t) schema = load("reports/schema/sweep.schema.json");
    json_t *listed = json_object_get(json_object_get(json_object_get(schema, "$defs"), "preset"), "enum");
    static const char *const folders[] = {"workloads/sweep/presets", "workloads/sweep/examples"};
    g_auto(GStrv) names = sweep_preset_names();
    check_int(json_array_size(listed), g_strv_length(names));
    for (size_t i = 0; names[i] != NULL; i++) {
        check_string(json_string_value(json_array_get(listed, i)), names[i]);
    }
    for (size_t f = 0; f < G_N_ELEMENTS(folders); f++) {
        g_autofree char *folder = check_source_path(folders[f]);
        g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
        const char *name;
        while ((name = g_dir_read_name(dir)) != NULL) {
            if (!g_str_has_suffix(name, ".json")) {
                continue;
            }
            g_autofree char *path = g_build_filename(folders[f], name, NULL);
            g_autoptr(json_t) sweep = load(path);
            const char *key;
            json_t *value;
            json_object_foreach (sweep, key, value) {
                if (json_object_get(json_object_get(schema, "properties"), key) == NULL) {
                    print_error("%s: %s\n", path, key);
                    fail();
                }
            }
        }
    }
}

/* The reader of sweeps asks for the fields of the schema, for all of them and for no others. */
static void test_sweep_fields(void **state)
{
    (void)state;
    g_autoptr(json_t) schema = load("reports/schema/sweep.schema.json");
    g_autofree char *path = check_source_path("workloads/sweep/sweep-read.c");
    g_autofree char *text = NULL;
    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    const char *key;
    json_t *value;
    json_object_foreach (json_object_get(schema, "properties"), key, value) {
        g_autofree char *asked = g_strdup_printf("(root, \"%s\"", key);
        check_contains(text, asked);
    }
    g_autoptr(GRegex) call = g_regex_new("json_object_\\w+\\(root, \"([\\w$]+)\"", 0, 0, NULL);
    g_autoptr(GMatchInfo) match = NULL;
    g_regex_match(call, text, 0, &match);
    for (; g_match_info_matches(match); g_match_info_next(match, NULL)) {
        g_autofree char *name = g_match_info_fetch(match, 1);
        assert_non_null(json_object_get(json_object_get(schema, "properties"), name));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_fields), cmocka_unit_test(test_drawn_fields),
        cmocka_unit_test(test_presets),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_sweeps),
        cmocka_unit_test(test_sweep_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
