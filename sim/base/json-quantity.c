/* Members that are quantities: numbers, or texts with a unit. */
#include "sim/base/json-read.h"

/* The text of a quantity, or NULL: then it is a number, or a mistake, or absent. */
static const char *quantity_text(JsonObject *object, const char *key, const char *what, double *ret_number)
{
    json_t *value = json_object_raw(object, key);
    *ret_number = -1;
    if (value == NULL || json_is_string(value)) {
        return json_string_value(value);
    }
    *ret_number = json_number_value(value);
    if (!json_is_number(value) || *ret_number < 0) {
        json_object_fail_type(object, key, value, what);
        *ret_number = -1;
    }
    return NULL;
}

/* Whether the text of a key was understood; a failed reading becomes the object's mistake. */
static gboolean understood(JsonObject *object, const char *key, gboolean parsed, GError *const *cause)
{
    if (!parsed) {
        json_object_fail(object, key, "%s", (*cause)->message);
    }
    return parsed;
}

int64_t json_object_bytes(JsonObject *object, const char *key, int64_t or_else)
{
    double number;
    int64_t bytes;
    g_autoptr(GError) cause = NULL;
    const char *text = quantity_text(object, key, "a number of bytes or a size such as \"8 GiB\"", &number);
    if (text == NULL) {
        return number < 0 ? or_else : json_object_int(object, key, 0, G_MAXINT64, or_else);
    }
    return understood(object, key, quantity_parse_bytes(text, &bytes, &cause), &cause) ? bytes : or_else;
}

double json_object_rate(JsonObject *object, const char *key, double or_else)
{
    double number, rate;
    g_autoptr(GError) cause = NULL;
    const char *text = quantity_text(object, key, "bytes per second or a rate such as \"900 GB/s\"", &number);
    if (text == NULL) {
        return number < 0 ? or_else : number;
    }
    return understood(object, key, quantity_parse_rate(text, &rate, &cause), &cause) ? rate : or_else;
}

double json_object_flops_rate(JsonObject *object, const char *key, double or_else)
{
    double number, rate;
    g_autoptr(GError) cause = NULL;
    const char *text = quantity_text(object, key, "FLOPs per second or a rate such as \"989 TFLOP/s\"", &number);
    if (text == NULL) {
        return number < 0 ? or_else : number;
    }
    return understood(object, key, quantity_parse_flops_rate(text, &rate, &cause), &cause) ? rate : or_else;
}

SimTime json_object_time(JsonObject *object, const char *key, SimTime or_else)
{
    double number;
    SimTime ns;
    g_autoptr(GError) cause = NULL;
    const char *text = quantity_text(object, key, "nanoseconds or a time such as \"11 us\"", &number);
    if (text == NULL) {
        return number < 0 ? or_else : json_object_int(object, key, 0, G_MAXINT64, or_else);
    }
    return understood(object, key, quantity_parse_time(text, &ns, &cause), &cause) ? ns : or_else;
}
