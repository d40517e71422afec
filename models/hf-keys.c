#include "models/hf-keys.h"

#include <string.h>

#include "sim/base/error.h"

static const char *const key_names[N_HF_KEYS][HF_NAMES_MAX + 1] = {
#define HF_KEY(id, ...) [HF_KEY_##id] = {__VA_ARGS__},
#include "models/hf-keys.def"
#undef HF_KEY
};

/* Fields that real files carry and that have no influence on shapes: loader, generation and training defaults. */
static const char *const harmless[] = {
#define HF_HARMLESS(name) name,
#include "models/hf-harmless.def"
#undef HF_HARMLESS
};

static const char *const harmless_ends[] = {"_token_id", "_token_ids", "_dtype", "_implementation", "_dropout",
                                            "_coef",     "_std",       "_range", "_version",        "_placeholder"};

/* An unread key with one of these is taken for the size of something. */
static const char *const shape_starts[] = {"num_", "n_", "moe_"};
static const char *const shape_ends[] = {"_size",     "_dim",     "_dims",    "_heads",  "_layers",
                                         "_rank",     "_experts", "_width",   "_window", "_freq",
                                         "_interval", "_topk",    "_pattern", "_config", "_types"};

const char *hf_key_name(HfKey key, int i)
{
    g_assert(key < N_HF_KEYS && i <= HF_NAMES_MAX);
    return key_names[key][i];
}

gboolean hf_key_from_name(const char *name, HfKey *ret_key)
{
    for (int key = 0; key < N_HF_KEYS; key++) {
        for (int i = 0; key_names[key][i] != NULL; i++) {
            if (strcmp(key_names[key][i], name) == 0) {
                *ret_key = (HfKey)key;
                return TRUE;
            }
        }
    }
    return FALSE;
}

const char *hf_key_nearest(const char *wrong)
{
    g_autoptr(GPtrArray) all = g_ptr_array_new();
    for (int key = 0; key < N_HF_KEYS; key++) {
        for (int i = 0; key_names[key][i] != NULL; i++) {
            g_ptr_array_add(all, (gpointer)(guintptr)key_names[key][i]);
        }
    }
    return error_nearest_name(wrong, (const char *const *)(void *)all->pdata, all->len);
}

void hf_reader_init(HfReader *reader, JsonObject *object, const char *family)
{
    reader->object = object;
    reader->family = family;
    reader->used = g_hash_table_new(g_str_hash, g_str_equal);
}

void hf_reader_clear(HfReader *reader)
{
    g_clear_pointer(&reader->used, g_hash_table_unref);
}

static void reader_mark(HfReader *reader, const char *name)
{
    g_hash_table_add(reader->used, (gpointer)(guintptr)name);
}

const char *hf_find(HfReader *reader, HfKey key)
{
    const char *found = NULL;
    for (int i = 0; key_names[key][i] != NULL; i++) {
        const char *name = key_names[key][i];
        reader_mark(reader, name);
        if (!json_object_has(reader->object, name)) {
            continue;
        }
        if (found == NULL) {
            found = name;
        } else if (!json_equal(json_object_raw(reader->object, found), json_object_raw(reader->object, name))) {
            json_object_fail(reader->object, name,
                             "differs from \"%s\", which is another name of the same field; keep one of them", found);
        }
    }
    return found;
}

int64_t hf_int(HfReader *reader, HfKey key, int64_t or_else)
{
    const char *name = hf_find(reader, key);
    return name == NULL ? or_else : json_object_int(reader->object, name, 0, HF_INT_MAX, or_else);
}

double hf_number(HfReader *reader, HfKey key, double or_else)
{
    const char *name = hf_find(reader, key);
    return name == NULL ? or_else : json_object_number(reader->object, name, -1e18, 1e18, or_else);
}

gboolean hf_bool(HfReader *reader, HfKey key, gboolean or_else)
{
    const char *name = hf_find(reader, key);
    return name == NULL ? or_else : json_object_bool(reader->object, name, or_else);
}

const char *hf_string(HfReader *reader, HfKey key, const char *or_else)
{
    const char *name = hf_find(reader, key);
    return name == NULL ? or_else : json_object_string(reader->object, name, or_else);
}

json_t *hf_raw(HfReader *reader, HfKey key)
{
    const char *name = hf_find(reader, key);
    return name == NULL ? NULL : json_object_raw(reader->object, name);
}

/* A key of the object that no one knows and that may be meant for the missing field, or NULL. */
static const char *reader_misspelt(const HfReader *reader, HfKey missing)
{
    const char *key;
    for (size_t i = 0; (key = json_object_key(reader->object, i)) != NULL; i++) {
        HfKey known;
        const char *near = hf_key_nearest(key);
        HfKey meant;
        if (!hf_key_from_name(key, &known) && near != NULL && hf_key_from_name(near, &meant) && meant == missing) {
            return key;
        }
    }
    return NULL;
}

int64_t hf_need(HfReader *reader, HfKey key)
{
    const char *name = hf_find(reader, key);
    if (name == NULL) {
        const char *misspelt = reader_misspelt(reader, key);
        if (misspelt != NULL) {
            json_object_fail(reader->object, misspelt, "unknown field; did you mean \"%s\"?", hf_key_nearest(misspelt));
        } else {
            json_object_fail(reader->object, key_names[key][0], "missing; a %s model needs it", reader->family);
        }
        return 1;
    }
    return json_object_int(reader->object, name, 1, HF_INT_MAX, 1);
}

void hf_skip(HfReader *reader, HfKey key)
{
    (void)hf_find(reader, key);
}

void hf_only(HfReader *reader, HfKey key, gboolean value, const char *missing)
{
    if (hf_bool(reader, key, value) != value) {
        hf_fail(reader, key, "%s: there is no operator for it; only %s is modelled", missing, value ? "true" : "false");
    }
}

void hf_fail(HfReader *reader, HfKey key, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    const char *name = hf_find(reader, key);
    json_object_fail(reader->object, name == NULL ? key_names[key][0] : name, "%s", text);
}

gboolean hf_flags(HfReader *reader, HfKey key, int64_t min, int64_t max, gboolean *ret_flags)
{
    for (int64_t i = min; i <= max; i++) {
        ret_flags[i - min] = FALSE;
    }
    json_t *list = hf_raw(reader, key);
    if (list == NULL) {
        return FALSE;
    }
    if (!json_is_array(list)) {
        hf_fail(reader, key, "must be a list of layers");
        return TRUE;
    }
    size_t i;
    json_t *item;
    json_array_foreach (list, i, item) {
        json_int_t value = json_is_integer(item) ? json_integer_value(item) : min - 1;
        if (value < min || value > max) {
            hf_fail(reader, key, "entry %zu is not a layer of %" G_GINT64_FORMAT "..%" G_GINT64_FORMAT, i, min, max);
            return TRUE;
        }
        if (ret_flags[value - min]) {
            hf_fail(reader, key, "layer %" JSON_INTEGER_FORMAT " stands there twice", value);
            return TRUE;
        }
        ret_flags[value - min] = TRUE;
    }
    return TRUE;
}

static gboolean starts_with_one(const char *key, const char *const *starts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (g_str_has_prefix(key, starts[i])) {
            return TRUE;
        }
    }
    return FALSE;
}

static gboolean ends_with_one(const char *key, const char *const *ends, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (g_str_has_suffix(key, ends[i])) {
            return TRUE;
        }
    }
    return FALSE;
}

static gboolean key_is_harmless(const char *key)
{
    for (size_t i = 0; i < G_N_ELEMENTS(harmless); i++) {
        if (strcmp(harmless[i], key) == 0) {
            return TRUE;
        }
    }
    return key[0] == '_' || ends_with_one(key, harmless_ends, G_N_ELEMENTS(harmless_ends));
}

/* Whether a value says "nothing of this kind". */
static gboolean value_is_neutral(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_integer(value) && json_integer_value(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static void reader_judge(HfReader *reader, const char *key)
{
    HfKey known;
    json_t *value = json_object_raw(reader->object, key);
    if (value_is_neutral(value)) {
        return;
    }
    if (hf_key_from_name(key, &known)) {
        json_object_fail(reader->object, key, "a %s model has no use of this field; is model_type right?",
                         reader->family);
        return;
    }
    const char *near = hf_key_nearest(key);
    const char *near_harmless = error_nearest_name(key, harmless, G_N_ELEMENTS(harmless));
    if (near != NULL && near_harmless == NULL) {
        json_object_fail(reader->object, key, "unknown field; did you mean \"%s\"?", near);
        return;
    }
    gboolean sized = json_is_number(value) || json_is_array(value) || json_is_object(value);
    gboolean shaped = starts_with_one(key, shape_starts, G_N_ELEMENTS(shape_starts)) ||
                      ends_with_one(key, shape_ends, G_N_ELEMENTS(shape_ends));
    if (sized && shaped && near_harmless == NULL) {
        json_object_fail(reader->object, key,
                         "unknown field that looks like a part of the model's shape; there is no operator for it");
    }
}

void hf_reader_finish(HfReader *reader)
{
    const char *key;
    for (size_t i = 0; (key = json_object_key(reader->object, i)) != NULL; i++) {
        if (!g_hash_table_contains(reader->used, key) && !key_is_harmless(key)) {
            reader_judge(reader, key);
        }
    }
}

void hf_reader_enter(HfReader *child, HfReader *parent, HfKey key)
{
    const char *name = hf_find(parent, key);
    JsonObject *object = name == NULL ? NULL : json_object_child(parent->object, name);
    hf_reader_init(child, object, parent->family);
}

void hf_reader_leave(HfReader *child)
{
    if (child->object != NULL) {
        const char *key;
        hf_reader_finish(child);
        for (size_t i = 0; (key = json_object_key(child->object, i)) != NULL; i++) {
            json_object_ignore(child->object, key);
        }
        json_object_end(child->object);
    }
    hf_reader_clear(child);
}
