#include "workloads/run/minimise.h"

#include <string.h>

#include "sim/base/json-read.h"
#include "workloads/cases.h"

/* From the simplest to richer ones. */
static const char *const models[] = {"llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "kimi-linear-48b-a3b"};

/* Numbers whose default is a large one: set to less, never left out. */
static const char *const sizes[] = {"cluster.gpus_per_node", "model.overrides.num_hidden_layers", "workload.seq_len"};
enum { SIZE_TRIED = 4 };

typedef struct Search {
    json_t *plan; /* smallest so far */
    MinimiseFails fails;
    void *self;
    int n_left; /* trials */
} Search;

/* Takes the trial; keeps it if it fails. */
static gboolean try_plan(Search *search, json_t *trial)
{
    if (search->n_left > 0 && !json_equal(trial, search->plan)) {
        search->n_left--;
        if (search->fails(search->self, trial)) {
            json_decref(search->plan);
            search->plan = trial;
            return TRUE;
        }
    }
    json_decref(trial);
    return FALSE;
}

/* Dotted paths of everything that is no object, in order. */
static void collect_leaves(json_t *object, const char *prefix, GPtrArray *ret_paths)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        g_autofree char *path = g_strdup_printf("%s%s%s", prefix, prefix[0] != '\0' ? "." : "", key);
        if (json_is_object(value)) {
            collect_leaves(value, path, ret_paths);
        } else {
            g_ptr_array_add(ret_paths, g_steal_pointer(&path));
        }
    }
}

/* The object in which a leaf stands, and its last name. */
static json_t *leaf_parent(json_t *plan, const char *path, const char **ret_key)
{
    g_auto(GStrv) parts = g_strsplit(path, ".", -1);
    json_t *at = plan;
    guint n = g_strv_length(parts);
    for (guint i = 0; i + 1 < n && at != NULL; i++) {
        at = json_object_get(at, parts[i]);
    }
    const char *dot = g_strrstr(path, ".");
    *ret_key = dot != NULL ? dot + 1 : path;
    return at;
}

static json_t *leaf_get(json_t *plan, const char *path)
{
    const char *key;
    json_t *parent = leaf_parent(plan, path, &key);
    return parent != NULL ? json_object_get(parent, key) : NULL;
}

static gboolean try_set(Search *search, const char *path, json_t *value)
{
    json_t *trial = json_deep_copy(search->plan);
    if (!cases_set(trial, path, value, NULL)) {
        json_decref(trial);
        return FALSE;
    }
    return try_plan(search, trial);
}

/* Objects that have become empty go, too. */
static void drop_empty(json_t *object)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(object, next, key, value) {
        if (json_is_object(value)) {
            drop_empty(value);
        }
        if (json_is_object(value) && json_object_size(value) == 0) {
            json_object_del(object, key);
        }
    }
}

static gboolean is_size(const char *path)
{
    for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
        if (strcmp(path, sizes[i]) == 0) {
            return TRUE;
        }
    }
    return FALSE;
}

static gboolean try_without(Search *search, const char *path)
{
    const char *key;
    if (is_size(path)) {
        return FALSE;
    }
    json_t *trial = json_deep_copy(search->plan);
    json_t *parent = leaf_parent(trial, path, &key);
    if (parent != NULL) {
        json_object_del(parent, key);
        drop_empty(trial);
    }
    return try_plan(search, trial);
}

/* 1, the half, one less. */
static gboolean try_less(Search *search, const char *path)
{
    const json_t *value = leaf_get(search->plan, path);
    json_int_t n = json_is_integer(value) ? json_integer_value(value) : 0;
    return n > 1 && (try_set(search, path, json_integer(1)) || (n > 3 && try_set(search, path, json_integer(n / 2))) ||
                     (n > 2 && try_set(search, path, json_integer(n - 1))));
}

static gboolean pass_over_leaves(Search *search, gboolean (*change)(Search *search, const char *path))
{
    g_autoptr(GPtrArray) paths = g_ptr_array_new_with_free_func(g_free);
    gboolean changed = FALSE;
    collect_leaves(search->plan, "", paths);
    for (guint i = 0; i < paths->len; i++) {
        while (leaf_get(search->plan, g_ptr_array_index(paths, i)) != NULL && change(search, g_ptr_array_index(paths, i))) {
            changed = TRUE;
        }
    }
    return changed;
}

static gboolean pass_over_models(Search *search)
{
    const json_t *config = leaf_get(search->plan, "model.config");
    const char *path = config != NULL ? "model.config" : "model";
    const char *now = json_string_value(leaf_get(search->plan, path));
    for (size_t i = 0; i < G_N_ELEMENTS(models) && now != NULL && strcmp(models[i], now) != 0; i++) {
        if (try_set(search, path, json_string(models[i]))) {
            return TRUE;
        }
    }
    return FALSE;
}

static gboolean pass_over_sizes(Search *search)
{
    gboolean changed = FALSE;
    for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
        const json_t *now = leaf_get(search->plan, sizes[i]);
        gboolean found = FALSE;
        for (json_int_t n = 1; n <= SIZE_TRIED && !found && (now == NULL || n < json_integer_value(now)); n++) {
            found = try_set(search, sizes[i], json_integer(n));
        }
        changed = changed || found;
    }
    return changed;
}

json_t *minimise_plan(json_t *plan, MinimiseFails fails, void *self, int max_tries)
{
    Search search = {json_deep_copy(plan), fails, self, max_tries};
    gboolean changed = TRUE;
    while (changed && search.n_left > 0) {
        changed = pass_over_leaves(&search, try_without);
        changed = pass_over_models(&search) || changed;
        changed = pass_over_sizes(&search) || changed;
        changed = pass_over_leaves(&search, try_less) || changed;
    }
    return search.plan;
}
