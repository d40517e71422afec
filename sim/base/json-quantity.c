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

/* A quantity of whole numbers, or of any; what: what it must be, for a mistake. */
static int64_t read_whole(JsonObject *object, const char *key, const char *what, gboolean (*parse)(const char *, int64_t *, GError **),
                          int64_t or_else)
{
    double number;
    int64_t whole;
    g_autoptr(GError) cause = NULL;
    const char *text = quantity_text(object, key, what, &number);
    if (text == NULL) {
        return number < 0 ? or_else : json_object_int(object, key, 0, G_MAXINT64, or_else);
    }
    return understood(object, key, parse(text, &whole, &cause), &cause) ? whole : or_else;
}

static double read_real(JsonObject *object, const char *key, const char *what, gboolean (*parse)(const char *, double *, GError **),
                        double or_else)
{
    double number, real;
    g_autoptr(GError) cause = NULL;
    const char *text = quantity_text(object, key, what, &number);
    if (text == NULL) {
        return number < 0 ? or_else : number;
    }
    return understood(object, key, parse(text, &real, &cause), &cause) ? real : or_else;
}

int64_t json_object_bytes(JsonObject *object, const char *key, int64_t or_else)
{
    return read_whole(object, key, "a number of bytes or a size such as \"8 GiB\"", quantity_parse_bytes, or_else);
}

SimTime json_object_time(JsonObject *object, const char *key, SimTime or_else)
{
    return read_whole(object, key, "nanoseconds or a time such as \"11 us\"", quantity_parse_time, or_else);
}

double json_object_rate(JsonObject *object, const char *key, double or_else)
{
    return read_real(object, key, "bytes per second or a rate such as \"900 GB/s\"", quantity_parse_rate, or_else);
}

double json_object_flops_rate(JsonObject *object, const char *key, double or_else)
{
    return read_real(object, key, "FLOPs per second or a rate such as \"989 TFLOP/s\"", quantity_parse_flops_rate, or_else);
}
