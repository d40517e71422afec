#include "sim/base/json-place.h"

#include <string.h>

static const char *skip_space(const char *p)
{
    return p + strspn(p, " \t\r\n");
}

/* p is on the opening quote; the result is behind the closing one. */
static const char *skip_string(const char *p)
{
    for (p++; *p != '\0' && *p != '"'; p++) {
        if (*p == '\\' && p[1] != '\0') {
            p++;
        }
    }
    return *p == '"' ? p + 1 : p;
}

/* Behind the value that starts at p. Brackets are counted, not matched by recursion: depth costs no stack. */
static const char *skip_value(const char *p)
{
    size_t depth = 0;
    do {
        p = skip_space(p);
        if (*p == '"') {
            p = skip_string(p);
        } else if (*p == '{' || *p == '[') {
            depth++;
            p++;
        } else if (depth > 0 && (*p == '}' || *p == ']')) {
            depth--;
            p++;
        } else if (depth > 0 && (*p == ',' || *p == ':')) {
            p++;
        } else {
            size_t n = strcspn(p, " \t\r\n,:{}[]\"");
            if (n == 0) {
                return p;
            }
            p += n;
        }
    } while (depth > 0 && *p != '\0');
    return p;
}

/* Whether the quoted key at p is that key. A key written with escapes is not recognised. */
static gboolean is_key(const char *p, const char *key)
{
    size_t n = strlen(key);
    return strncmp(p + 1, key, n) == 0 && p[1 + n] == '"';
}

/* Value of the member, or NULL; *ret_key is where the key stands. */
static const char *find_member(const char *p, const char *key, const char **ret_key)
{
    if (*p != '{') {
        return NULL;
    }
    p = skip_space(p + 1);
    while (*p == '"') {
        const char *at_key = p;
        p = skip_space(skip_string(p));
        p = skip_space(*p == ':' ? p + 1 : p);
        if (is_key(at_key, key)) {
            *ret_key = at_key;
            return p;
        }
        p = skip_space(skip_value(p));
        p = skip_space(*p == ',' ? p + 1 : p);
    }
    return NULL;
}

static const char *find_element(const char *p, size_t idx)
{
    if (*p != '[') {
        return NULL;
    }
    p = skip_space(p + 1);
    for (size_t i = 0; i < idx; i++) {
        p = skip_space(skip_value(p));
        if (*p != ',') {
            return NULL;
        }
        p = skip_space(p + 1);
    }
    return *p == ']' || *p == '\0' ? NULL : p;
}

static JsonPlace place_of(const char *text, const char *at)
{
    JsonPlace place = {1, 1};
    for (const char *p = text; p < at; p++) {
        if (*p == '\n') {
            place.line++;
            place.column = 1;
        } else if (((unsigned char)*p & 0xc0) != 0x80) { /* not inside a UTF-8 sequence */
            place.column++;
        }
    }
    return place;
}

JsonPlace json_place_find(const char *text, const JsonStep *steps, size_t n_steps, gboolean want_key)
{
    const char *value = skip_space(text);
    const char *key = value;
    for (size_t i = 0; i < n_steps; i++) {
        const char *next_key = NULL;
        const char *next =
            steps[i].key != NULL ? find_member(value, steps[i].key, &next_key) : find_element(value, steps[i].idx);
        if (next == NULL) {
            return place_of(text, value);
        }
        value = next;
        key = next_key != NULL ? next_key : next;
    }
    return place_of(text, want_key ? key : value);
}
