#include "sim/base/json-doc.h"

#include <string.h>

#include "sim/base/file.h"

struct JsonDoc {
    gint extra_refs; /* beside the first; see json_doc_ref() */
    char *name;
    char *text; /* as it was read; NULL for a value made in memory */
    json_t *root;
};

static gboolean is_word(char c)
{
    return g_ascii_isalnum(c) || c == '_' || c == '.' || c == '+' || c == '-';
}

/* The text with bare Infinity, -Infinity and NaN outside strings replaced by null; caller frees. */
static char *without_specials(const char *text, size_t length)
{
    static const char *const specials[] = {"Infinity", "-Infinity", "NaN"};
    GString *clean = g_string_sized_new(length);
    gboolean in_string = FALSE;
    for (size_t i = 0; i < length;) {
        size_t n = 1;
        if (in_string && text[i] == '\\' && i + 1 < length) {
            n = 2;
        } else if (text[i] == '"') {
            in_string = !in_string;
        } else if (!in_string && is_word(text[i])) {
            while (i + n < length && is_word(text[i + n])) {
                n++;
            }
            for (size_t k = 0; k < G_N_ELEMENTS(specials); k++) {
                if (strlen(specials[k]) == n && strncmp(text + i, specials[k], n) == 0) {
                    g_string_append(clean, "null");
                    i += n;
                    n = 0;
                    break;
                }
            }
        }
        g_string_append_len(clean, text + i, (gssize)n);
        i += n;
    }
    return g_string_free(clean, FALSE);
}

const char *json_cause(const json_error_t *error)
{
    switch (json_error_code(error)) {
    case json_error_numeric_overflow:
        return "this number is too large: a whole one has at most 64 bits, any other is at most 1.8e308";
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return "a text holds the character \\u0000, which none here may";
    case json_error_stack_overflow:
        return "objects and lists lie in one another too deep";
    default:
        return error->text;
    }
}

static JsonDoc *doc_parse(char *text, size_t length, const char *name, gboolean lenient, GError **error)
{
    g_autoptr(JsonDoc) doc = g_new0(JsonDoc, 1);
    doc->name = g_strdup(name);
    doc->text = text;
    if (memchr(text, '\0', length) != NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: holds a NUL byte, so it is no JSON text", name);
        return NULL;
    }
    g_autofree char *clean = lenient ? without_specials(text, length) : NULL;
    json_error_t cause;
    doc->root = json_loads(lenient ? clean : text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &cause);
    if (doc->root == NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s:%d:%d: %s", name, MAX(cause.line, 1),
                    MAX(cause.column, 1), json_cause(&cause));
        return NULL;
    }
    return g_steal_pointer(&doc);
}

JsonDoc *json_doc_load(const char *path, gboolean lenient, GError **error)
{
    size_t length;
    char *text = file_read(path, &length, error);
    return text == NULL ? NULL : doc_parse(text, length, path, lenient, error);
}

JsonDoc *json_doc_parse(const char *text, const char *name, gboolean lenient, GError **error)
{
    return doc_parse(g_strdup(text), strlen(text), name, lenient, error);
}

JsonDoc *json_doc_from_value(json_t *value, const char *name)
{
    JsonDoc *doc = g_new0(JsonDoc, 1);
    doc->name = g_strdup(name);
    doc->root = json_incref(value);
    return doc;
}

JsonDoc *json_doc_ref(JsonDoc *doc)
{
    g_atomic_int_inc(&doc->extra_refs);
    return doc;
}

void json_doc_free(JsonDoc *doc)
{
    if (doc == NULL || g_atomic_int_add(&doc->extra_refs, -1) > 0) {
        return;
    }
    json_decref(doc->root);
    g_free(doc->text);
    g_free(doc->name);
    g_free(doc);
}

json_t *json_doc_root(const JsonDoc *doc)
{
    return doc->root;
}

const char *json_doc_name(const JsonDoc *doc)
{
    return doc->name;
}

char *json_steps_path(const JsonStep *steps, size_t n_steps)
{
    GString *path = g_string_new(NULL);
    for (size_t i = 0; i < n_steps; i++) {
        if (steps[i].key == NULL) {
            g_string_append_printf(path, "[%" G_GSIZE_FORMAT "]", steps[i].idx);
        } else {
            g_autofree char *shown = error_shorten(steps[i].key);
            g_string_append_printf(path, "%s%s", path->len > 0 ? "." : "", shown);
        }
    }
    return g_string_free(path, FALSE);
}

GError *json_doc_error(const JsonDoc *doc, const JsonStep *steps, size_t n_steps, gboolean want_key, MoesimError code, const char *what)
{
    g_autofree char *path = json_steps_path(steps, n_steps);
    const char *colon = path[0] == '\0' ? "" : ": ";
    if (doc->text == NULL) {
        return g_error_new(MOESIM_ERROR, (int)code, "%s: %s%s%s", doc->name, path, colon, what);
    }
    JsonPlace place = json_place_find(doc->text, steps, n_steps, want_key);
    return g_error_new(MOESIM_ERROR, (int)code, "%s:%d:%d: %s%s%s", doc->name, place.line, place.column, path, colon, what);
}

void json_doc_fail(const JsonDoc *doc, const JsonStep *steps, size_t n_steps, GError **error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *what = g_strdup_vprintf(format, args);
    va_end(args);
    g_propagate_error(error, json_doc_error(doc, steps, n_steps, FALSE, MOESIM_ERROR_INPUT, what));
}
