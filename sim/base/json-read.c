#include "sim/base/json-read.h"

#include <math.h>
#include <string.h>

#include "sim/base/error.h"

/*
 * Views form a tree by parent; the first mistake of the whole tree is kept in its root, so that it sticks
 * to every view at once.
 */
struct JsonObject {
    JsonDoc *doc;
    JsonObject *parent; /* NULL for the root */
    JsonStep steps[2];  /* from the parent: the key, and for an element of an array its index */
    size_t n_steps;
    json_t *value;
    GPtrArray *asked; /* char *: keys that are known, in the order they were asked for */
    char *key;        /* what steps[0] points at */
    GError *mistake;  /* root only */
};

static JsonObject *object_new(JsonDoc *doc, JsonObject *parent, json_t *value)
{
    JsonObject *object = g_new0(JsonObject, 1);
    object->doc = doc;
    object->parent = parent;
    object->value = value;
    object->asked = g_ptr_array_new_with_free_func(g_free);
    return object;
}

static void object_free(JsonObject *object)
{
    g_ptr_array_unref(object->asked);
    g_clear_error(&object->mistake);
    g_free(object->key);
    g_free(object);
}

static JsonObject *root_of(JsonObject *object)
{
    while (object->parent != NULL) {
        object = object->parent;
    }
    return object;
}

/* Steps down a dotted path; words holds the keys. */
static void append_path(GArray *steps, const char *path, GPtrArray *words)
{
    g_auto(GStrv) keys = g_strsplit(path, ".", -1);
    for (char **key = keys; *key != NULL; key++) {
        char *word = g_strdup(*key);
        JsonStep step = {word, 0};
        g_ptr_array_add(words, word);
        g_array_append_val(steps, step);
    }
}

/*
 * Steps from the document's root to the object, and to a key in it unless NULL, which may be a path of keys; words holds those.
 * Caller frees.
 */
static GArray *steps_to(const JsonObject *object, const char *key, GPtrArray *words)
{
    GArray *steps = g_array_new(FALSE, FALSE, sizeof(JsonStep));
    for (const JsonObject *at = object; at != NULL; at = at->parent) {
        if (at->n_steps > 0) {
            g_array_prepend_vals(steps, at->steps, (guint)at->n_steps);
        }
    }
    if (key != NULL && json_object_get(object->value, key) == NULL) {
        append_path(steps, key, words);
    } else if (key != NULL) {
        JsonStep last = {key, 0};
        g_array_append_val(steps, last);
    }
    return steps;
}

char *json_object_path(const JsonObject *object, const char *key)
{
    g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GArray) steps = steps_to(object, key, words);
    return json_steps_path((const JsonStep *)(void *)steps->data, steps->len);
}

/* Records a mistake unless one sticks already. at_key: point at the key, not at its value. */
static void fail_at(JsonObject *object, const char *key, gboolean at_key, MoesimError code, const char *what)
{
    JsonObject *root = root_of(object);
    if (root->mistake == NULL) {
        g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);
        g_autoptr(GArray) steps = steps_to(object, key, words);
        root->mistake = json_doc_error(object->doc, (const JsonStep *)(void *)steps->data, steps->len, at_key, code, what);
    }
}

void json_object_fail(JsonObject *object, const char *key, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *what = g_strdup_vprintf(format, args);
    va_end(args);
    fail_at(object, key, FALSE, MOESIM_ERROR_INPUT, what);
}

void json_object_adopt(JsonObject *object, const char *key, GError *error)
{
    fail_at(object, key, FALSE, error->domain == MOESIM_ERROR ? (MoesimError)error->code : MOESIM_ERROR_IO, error->message);
    g_error_free(error);
}

gboolean json_object_ok(const JsonObject *object)
{
    while (object != NULL && object->parent != NULL) {
        object = object->parent;
    }
    return object == NULL || object->mistake == NULL;
}

JsonObject *json_doc_open(JsonDoc *doc, GError **error)
{
    JsonObject *object = object_new(doc, NULL, json_doc_root(doc));
    if (!json_is_object(json_doc_root(doc))) {
        fail_at(object, NULL, FALSE, MOESIM_ERROR_INPUT, "must be an object: { … }");
        json_object_close(object, TRUE, error);
        return NULL;
    }
    return object;
}

static gboolean is_asked(const JsonObject *object, const char *key)
{
    for (guint i = 0; i < object->asked->len; i++) {
        if (strcmp(g_ptr_array_index(object->asked, i), key) == 0) {
            return TRUE;
        }
    }
    return FALSE;
}

void json_object_ignore(JsonObject *object, const char *key)
{
    if (object != NULL && !is_asked(object, key)) {
        g_ptr_array_add(object->asked, g_strdup(key));
    }
}

static void fail_unknown(JsonObject *object, const char *key)
{
    const char *const *known = (const char *const *)(void *)object->asked->pdata;
    const char *nearest = error_nearest_name(key, known, object->asked->len);
    GString *what = g_string_new("unknown");
    if (nearest != NULL) {
        g_string_append_printf(what, "; did you mean \"%s\"?", nearest);
    } else if (object->asked->len > 0) {
        g_string_append(what, "; known here:");
        for (guint i = 0; i < object->asked->len; i++) {
            g_string_append_printf(what, "%s %s", i > 0 ? "," : "", known[i]);
        }
    }
    fail_at(object, key, TRUE, MOESIM_ERROR_INPUT, what->str);
    g_string_free(what, TRUE);
}

void json_object_refuse_unknown(JsonObject *object)
{
    const char *key;
    json_t *value;
    json_object_foreach (object->value, key, value) {
        if (!is_asked(object, key)) {
            fail_unknown(object, key); /* only the first mistake sticks */
            return;
        }
    }
}

gboolean json_object_close(JsonObject *object, gboolean tolerant, GError **error)
{
    if (object == NULL) {
        return TRUE;
    }
    if (!tolerant && json_object_ok(object)) {
        json_object_refuse_unknown(object);
    }
    const GError *mistake = root_of(object)->mistake;
    if (mistake != NULL && error != NULL) {
        *error = g_error_copy(mistake);
    }
    gboolean ok = mistake == NULL;
    object_free(object);
    return ok;
}

void json_object_end(JsonObject *child)
{
    json_object_close(child, FALSE, NULL);
}

gboolean json_object_has(const JsonObject *object, const char *key)
{
    json_t *value = object == NULL ? NULL : json_object_get(object->value, key);
    return value != NULL && !json_is_null(value);
}

json_t *json_object_raw(JsonObject *object, const char *key)
{
    json_object_ignore(object, key);
    return json_object_has(object, key) && json_object_ok(object) ? json_object_get(object->value, key) : NULL;
}

/* "must be WHAT, not VALUE", the value cut short. */
void json_object_fail_type(JsonObject *object, const char *key, const json_t *value, const char *what)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(12));
    g_autofree char *shown = error_shorten(text != NULL ? text : "that");
    json_object_fail(object, key, "must be %s, not %s", what, shown);
    free(text);
}

JsonObject *json_object_child(JsonObject *object, const char *key)
{
    json_t *value = json_object_raw(object, key);
    if (value == NULL) {
        return NULL;
    }
    if (!json_is_object(value)) {
        json_object_fail_type(object, key, value, "an object");
        return NULL;
    }
    JsonObject *child = object_new(object->doc, object, value);
    child->key = g_strdup(key);
    child->steps[0] = (JsonStep){child->key, 0};
    child->n_steps = 1;
    return child;
}

size_t json_object_length(JsonObject *object, const char *key)
{
    json_t *value = json_object_raw(object, key);
    if (value != NULL && !json_is_array(value)) {
        json_object_fail_type(object, key, value, "an array");
        return 0;
    }
    return json_array_size(value);
}

JsonObject *json_object_item(JsonObject *object, const char *key, size_t idx)
{
    if (json_object_length(object, key) <= idx) {
        return NULL;
    }
    json_t *value = json_array_get(json_object_get(object->value, key), idx);
    JsonObject *item = object_new(object->doc, object, value);
    item->key = g_strdup(key);
    item->steps[0] = (JsonStep){item->key, 0};
    item->steps[1] = (JsonStep){NULL, idx};
    item->n_steps = 2;
    if (!json_is_object(value)) {
        json_object_fail_type(item, NULL, value, "an object");
        object_free(item);
        return NULL;
    }
    return item;
}

/* What an integer may be, in words. */
static char *int_range(int64_t min, int64_t max)
{
    if (min == G_MININT64 && max == G_MAXINT64) {
        return g_strdup("an integer");
    }
    if (max == G_MAXINT64) {
        return g_strdup_printf("an integer of at least %" G_GINT64_FORMAT, min);
    }
    if (min == G_MININT64) {
        return g_strdup_printf("an integer of at most %" G_GINT64_FORMAT, max);
    }
    return g_strdup_printf("an integer from %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT, min, max);
}

/* Integers, and reals that are whole (8.0, 1e9). */
static gboolean to_int(const json_t *value, int64_t *ret_int)
{
    if (json_is_integer(value)) {
        *ret_int = json_integer_value(value);
        return TRUE;
    }
    double real = json_real_value(value);
    if (!json_is_real(value) || floor(real) < real || fabs(real) > 0x1p53) {
        return FALSE;
    }
    *ret_int = (int64_t)real;
    return TRUE;
}

int64_t json_object_int(JsonObject *object, const char *key, int64_t min, int64_t max, int64_t or_else)
{
    json_t *value = json_object_raw(object, key);
    if (value == NULL) {
        return or_else;
    }
    int64_t number;
    if (!to_int(value, &number) || number < min || number > max) {
        g_autofree char *range = int_range(min, max);
        json_object_fail_type(object, key, value, range);
        return or_else;
    }
    return number;
}

static char *number_range(double min, double max)
{
    if (isinf(min) && isinf(max)) {
        return g_strdup("a number");
    }
    if (isinf(max)) {
        return g_strdup_printf("a number of at least %.12g", min);
    }
    if (isinf(min)) {
        return g_strdup_printf("a number of at most %.12g", max);
    }
    return g_strdup_printf("a number from %.12g to %.12g", min, max);
}

double json_object_number(JsonObject *object, const char *key, double min, double max, double or_else)
{
    json_t *value = json_object_raw(object, key);
    if (value == NULL) {
        return or_else;
    }
    double number = json_number_value(value);
    if (!json_is_number(value) || number < min || number > max) {
        g_autofree char *range = number_range(min, max);
        json_object_fail_type(object, key, value, range);
        return or_else;
    }
    return number;
}

gboolean json_object_bool(JsonObject *object, const char *key, gboolean or_else)
{
    json_t *value = json_object_raw(object, key);
    if (value == NULL) {
        return or_else;
    }
    if (!json_is_boolean(value)) {
        json_object_fail_type(object, key, value, "true or false");
        return or_else;
    }
    return json_is_true(value);
}

const char *json_object_string(JsonObject *object, const char *key, const char *or_else)
{
    json_t *value = json_object_raw(object, key);
    if (value == NULL) {
        return or_else;
    }
    if (!json_is_string(value)) {
        json_object_fail_type(object, key, value, "a string");
        return or_else;
    }
    return json_string_value(value);
}

int json_object_choice(JsonObject *object, const char *key, const char *const *names, int n_names, int or_else)
{
    const char *text = json_object_string(object, key, NULL);
    if (text == NULL) {
        return or_else;
    }
    for (int i = 0; i < n_names; i++) {
        if (strcmp(names[i], text) == 0) {
            return i;
        }
    }
    GString *known = g_string_new(NULL);
    for (int i = 0; i < n_names; i++) {
        g_string_append_printf(known, "%s\"%s\"", i == 0 ? "" : i + 1 < n_names ? ", " : " or ", names[i]);
    }
    const char *nearest = error_nearest_name(text, names, (size_t)n_names);
    g_autofree char *shown = error_shorten(text);
    json_object_fail(object, key, "must be %s, not \"%s\"%s%s%s", known->str, shown,
                     nearest != NULL ? "; did you mean \"" : "", nearest != NULL ? nearest : "",
                     nearest != NULL ? "\"?" : "");
    g_string_free(known, TRUE);
    return or_else;
}

const char *json_object_key(const JsonObject *object, size_t idx)
{
    const char *key;
    json_t *value;
    if (object == NULL) {
        return NULL;
    }
    json_object_foreach (object->value, key, value) {
        if (idx-- == 0) {
            return key;
        }
    }
    return NULL;
}
