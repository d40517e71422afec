#include "workloads/sweep/sweep-names.h"

#include <string.h>

#include "sim/base/error.h"
#include "sim/base/json-read.h"
#include "workloads/cases.h"

typedef enum FactKind {
#define FACT(name, value) FACT_##name,
#include "workloads/sweep/sweep-facts.def"
#undef FACT
    N_FACTS
} FactKind;

static const char *const fact_names[] = {
#define FACT(name, value) #name,
#include "workloads/sweep/sweep-facts.def"
#undef FACT
};

typedef struct Facts {
    gboolean known;
    char *why_not;
    double values[N_FACTS];
} Facts;

struct SweepNames {
    const Sweep *sweep;
    Session *session;
    GHashTable *facts; /* model and cluster as text → Facts */
    json_t *model, *cluster; /* of the plan before, and its facts: few plans differ there */
    const Facts *last;
};

static void facts_free(void *data)
{
    Facts *facts = data;
    g_free(facts->why_not);
    g_free(facts);
}

SweepNames *sweep_names_new(const Sweep *sweep, Session *session)
{
    SweepNames *names = g_new0(SweepNames, 1);
    names->sweep = sweep;
    names->session = session;
    names->facts = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, facts_free);
    return names;
}

void sweep_names_free(SweepNames *names)
{
    if (names != NULL) {
        json_decref(names->model);
        json_decref(names->cluster);
        g_hash_table_unref(names->facts);
        g_free(names);
    }
}

/* ---- facts ---- */

static void facts_fill(Facts *facts, const Plan *plan)
{
#define FACT(name, value) facts->values[FACT_##name] = (double)(value);
#include "workloads/sweep/sweep-facts.def"
#undef FACT
}

/* Facts of a pair of model and cluster, whatever else a plan says. */
static const Facts *facts_of_pair(SweepNames *names, json_t *pair)
{
    enum { FACTS_MAX = 4096 };
    char *key = json_dumps(pair, JSON_COMPACT);
    Facts *facts = g_hash_table_lookup(names->facts, key);
    if (facts != NULL) {
        free(key);
        return facts;
    }
    if (g_hash_table_size(names->facts) >= FACTS_MAX) { /* memory stays flat */
        g_hash_table_remove_all(names->facts);
    }
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) loaded = session_plan(names->session, pair, "", names->sweep->base_dir, &error);
    facts = g_new0(Facts, 1);
    facts->known = loaded != NULL;
    if (loaded != NULL) {
        facts_fill(facts, loaded);
    } else {
        facts->why_not = g_strdup(g_str_has_prefix(error->message, ": ") ? error->message + 2 : error->message);
    }
    g_hash_table_insert(names->facts, g_strdup(key), facts);
    free(key);
    return facts;
}

static const Facts *facts_of(SweepNames *names, json_t *plan)
{
    json_t *model = json_object_get(plan, "model"), *cluster = json_object_get(plan, "cluster");
    if (names->last == NULL || model != names->model || cluster != names->cluster) {
        g_autoptr(json_t) pair = json_object();
        json_object_set(pair, "model", model);
        json_object_set(pair, "cluster", cluster);
        names->last = facts_of_pair(names, pair);
        json_decref(names->model);
        json_decref(names->cluster);
        names->model = json_incref(model); /* held: what stands there cannot become another one's address */
        names->cluster = json_incref(cluster);
    }
    return names->last;
}

/* ---- names ---- */

typedef struct Lookup {
    SweepNames *names;
    json_t *plan;
} Lookup;

static int fact_find(const char *name)
{
    for (int i = 0; i < N_FACTS; i++) {
        if (strcmp(name, fact_names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

static gboolean fact_value(Lookup *lookup, FactKind kind, ExpressionValue *ret_value, GError **error)
{
    const Facts *facts = facts_of(lookup->names, lookup->plan);
    if (!facts->known) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s is not known: %s", fact_names[kind], facts->why_not);
        return FALSE;
    }
    *ret_value = (ExpressionValue){EXPRESSION_NUMBER, facts->values[kind], NULL};
    return TRUE;
}

/* What stands at a dotted path; NULL when nothing does. A model by its name has itself as config. */
static json_t *value_at(json_t *object, const char *path)
{
    const char *dot;
    json_t *value = object;
    while (value != NULL && (dot = strchr(path, '.')) != NULL) {
        g_autofree char *key = g_strndup(path, (gsize)(dot - path));
        value = json_object_get(value, key);
        path = dot + 1;
    }
    if (json_is_string(value) && strcmp(path, "config") == 0) {
        return value;
    }
    value = json_object_get(value, path);
    return json_is_null(value) ? NULL : value;
}

static void text_value(const char *name, const char *text, ExpressionValue *ret_value)
{
    int64_t bytes;
    gboolean is_size = g_str_has_suffix(name, "_bytes") && quantity_parse_bytes(text, &bytes, NULL);
    *ret_value = is_size ? (ExpressionValue){EXPRESSION_NUMBER, (double)bytes, NULL}
                         : (ExpressionValue){EXPRESSION_TEXT, 0, text};
}

/* The degree that fills the cluster, where a plan leaves it open. */
static gboolean open_degree(Lookup *lookup, ExpressionValue *ret_value, GError **error)
{
    static const char *const others[] = {"parallel.dp_replicate", "parallel.tp", "parallel.cp", "parallel.pp"};
    if (!fact_value(lookup, FACT_ranks, ret_value, error)) {
        return FALSE;
    }
    for (size_t i = 0; i < G_N_ELEMENTS(others); i++) {
        double degree = json_number_value(value_at(lookup->plan, others[i]));
        ret_value->number /= degree > 0 ? degree : 1;
    }
    return TRUE;
}

static gboolean look_up(guint name_idx, const char *name, void *data, ExpressionValue *ret_value, GError **error)
{
    (void)name_idx;
    Lookup *lookup = data;
    int fact = fact_find(name);
    if (fact >= 0) {
        return fact_value(lookup, (FactKind)fact, ret_value, error);
    }
    json_t *value = value_at(lookup->plan, name);
    if (value == NULL) {
        value = value_at(lookup->names->sweep->defaults, name);
    }
    if (strcmp(name, "parallel.dp_shard") == 0 && json_integer_value(value) == -1) {
        return open_degree(lookup, ret_value, error);
    }
    if (json_is_number(value)) {
        *ret_value = (ExpressionValue){EXPRESSION_NUMBER, json_number_value(value), NULL};
    } else if (json_is_boolean(value)) {
        *ret_value = (ExpressionValue){EXPRESSION_BOOL, json_is_true(value), NULL};
    } else if (json_is_string(value)) {
        text_value(name, json_string_value(value), ret_value);
    } else if (value == NULL) {
        *ret_value = (ExpressionValue){EXPRESSION_NULL, 0, NULL};
    } else {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s is a list or an object, which expressions cannot compare",
                    name);
        return FALSE;
    }
    return TRUE;
}

gboolean sweep_names_evaluate(SweepNames *names, const Expression *expression, json_t *plan, ExpressionValue *ret_value,
                              GError **error)
{
    Lookup lookup = {names, plan};
    return expression_evaluate(expression, look_up, &lookup, ret_value, error);
}

gboolean sweep_names_allow(SweepNames *names, json_t *plan, gboolean *ret_allowed, GError **error)
{
    Lookup lookup = {names, plan};
    gboolean allowed = TRUE;
    for (guint i = 0; allowed && i < names->sweep->constraints->len; i++) {
        const Expression *expression = g_ptr_array_index(names->sweep->constraints, i);
        if (!expression_is_true(expression, look_up, &lookup, &allowed, error)) {
            g_prefix_error(error, "constraint \"%s\": ", expression_text(expression));
            return FALSE;
        }
    }
    *ret_allowed = allowed;
    return TRUE;
}

/* ---- checks ---- */

/* The schema of an object's member; NULL when it can have none of that name. Alternatives are tried in turn. */
static json_t *schema_member(json_t *schema, const char *key)
{
    json_t *found = json_object_get(json_object_get(schema, "properties"), key);
    json_t *further = json_object_get(schema, "additionalProperties");
    if (found == NULL && json_is_object(further)) {
        found = further;
    }
    static const char *const alternatives[] = {"oneOf", "anyOf", "allOf"};
    for (size_t k = 0; found == NULL && k < G_N_ELEMENTS(alternatives); k++) {
        json_t *list = json_object_get(schema, alternatives[k]);
        for (size_t i = 0; found == NULL && i < json_array_size(list); i++) {
            found = schema_member(json_array_get(list, i), key);
        }
    }
    return found;
}

static void fail_unknown(const char *path, const char *key, json_t *schema, gboolean at_top, GError **error)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    const char *name;
    json_t *value;
    json_object_foreach (json_object_get(schema, "properties"), name, value) {
        g_ptr_array_add(names, (void *)(guintptr)name);
    }
    for (int i = 0; at_top && i < N_FACTS; i++) {
        g_ptr_array_add(names, (void *)(guintptr)fact_names[i]);
    }
    const char *near = error_nearest_name(key, (const char *const *)(void *)names->pdata, names->len);
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: plans have no field \"%s\"%s%s%s", path, key,
                near != NULL ? "; did you mean \"" : "; moesim schema lists them", near != NULL ? near : "",
                near != NULL ? "\"?" : "");
}

gboolean sweep_check_field(const char *path, json_t *plan_schema, GError **error)
{
    g_auto(GStrv) keys = g_strsplit(path, ".", -1);
    json_t *schema = plan_schema;
    if (strcmp(path, "model.overrides") != 0 && g_str_has_prefix(path, "model.") && strcmp(path, "model.config") != 0 &&
        !g_str_has_prefix(path, "model.overrides.")) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                    "%s: fields of a model are set by model.config or model.overrides.NAME", path);
        return FALSE;
    }
    for (char **key = keys; *key != NULL; key++) {
        json_t *member = schema_member(schema, *key);
        if (member == NULL) {
            fail_unknown(path, *key, schema, FALSE, error);
            return FALSE;
        }
        if (strcmp(*key, "overrides") == 0 || (key[1] != NULL && json_is_true(json_object_get(member, "additionalProperties")))) {
            return TRUE; /* whatever the model's config has */
        }
        schema = member;
    }
    return TRUE;
}

gboolean sweep_names_check(const Expression *expression, json_t *plan_schema, GError **error)
{
    for (guint i = 0; i < expression_n_names(expression); i++) {
        const char *name = expression_name(expression, i);
        if (fact_find(name) >= 0) {
            continue;
        }
        if (strchr(name, '.') == NULL && schema_member(plan_schema, name) == NULL) {
            fail_unknown(name, name, plan_schema, TRUE, error);
            return FALSE;
        }
        if (!sweep_check_field(name, plan_schema, error)) {
            return FALSE;
        }
    }
    return TRUE;
}
