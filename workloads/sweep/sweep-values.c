#include "workloads/sweep/sweep-values.h"

#include <math.h>

#include "sim/base/error.h"
#include "sim/base/json-read.h"

enum { VALUES_MAX = 1000000 };

typedef struct Expansion {
    SweepNames *names;
    json_t *base;
    json_t *out;
    GError **error;
} Expansion;

static gboolean fail(const Expansion *run, const char *format, ...) G_GNUC_PRINTF(2, 3);
static gboolean fail(const Expansion *run, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *what = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error(run->error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s", what);
    return FALSE;
}

static gboolean is_range(json_t *value)
{
    return json_is_object(value) && (json_object_get(value, "from") != NULL || json_object_get(value, "divisors") != NULL);
}

static gboolean is_whole(double x)
{
    return !(x < floor(x)) && !(x > floor(x)) && fabs(x) < 9e15;
}

/* A number, or an expression over the base plan; or_else when absent. */
static gboolean range_number(const Expansion *run, json_t *range, const char *key, double or_else, double *ret_number)
{
    json_t *value = json_object_get(range, key);
    *ret_number = or_else;
    if (value == NULL) {
        return TRUE;
    }
    if (json_is_number(value)) {
        *ret_number = json_number_value(value);
        return TRUE;
    }
    const char *text = json_string_value(value);
    ExpressionValue result;
    if (text == NULL) {
        return fail(run, "\"%s\" of a range is a number, or an expression in quotes", key);
    }
    g_autoptr(Expression) expression = expression_parse(text, run->error);
    if (expression == NULL || !sweep_names_evaluate(run->names, expression, run->base, &result, run->error)) {
        g_prefix_error(run->error, "\"%s\": \"%s\": ", key, text);
        return FALSE;
    }
    if (result.kind != EXPRESSION_NUMBER) {
        return fail(run, "\"%s\": \"%s\" is no number", key, text);
    }
    *ret_number = result.number;
    return TRUE;
}

static void add_number(const Expansion *run, double number)
{
    json_array_append_new(run->out, is_whole(number) ? json_integer((json_int_t)number) : json_real(number));
}

static gboolean expand_divisors(const Expansion *run, json_t *range)
{
    double whole, from, to;
    if (!range_number(run, range, "divisors", 1, &whole) || !range_number(run, range, "from", 1, &from) ||
        !range_number(run, range, "to", whole, &to)) {
        return FALSE;
    }
    if (!is_whole(whole) || whole < 1 || whole > 1e9) {
        return fail(run, "divisors of %g: expected a whole number from 1 to 10^9", whole);
    }
    size_t before = json_array_size(run->out);
    for (int64_t d = MAX(1, (int64_t)ceil(from)); d <= (int64_t)MIN(to, whole); d++) {
        if ((int64_t)whole % d == 0) {
            add_number(run, (double)d);
        }
    }
    return json_array_size(run->out) > before || fail(run, "%g has no divisor from %g to %g", whole, from, to);
}

static gboolean expand_steps(const Expansion *run, json_t *range)
{
    double from, to, step, factor;
    if (!range_number(run, range, "from", 0, &from) || !range_number(run, range, "to", NAN, &to) ||
        !range_number(run, range, "step", NAN, &step) || !range_number(run, range, "factor", NAN, &factor)) {
        return FALSE;
    }
    if (isnan(to) || isnan(step) == isnan(factor)) {
        return fail(run, "a range has \"from\", \"to\" (included), and either \"step\" or \"factor\"");
    }
    if (!(from <= to) || (!isnan(step) && !(step > 0)) || (!isnan(factor) && !(factor > 1 && from > 0))) {
        return fail(run, "a range runs upward: from <= to, step > 0, factor > 1 (and then from > 0)");
    }
    double slack = 1e-9 * fabs(to); /* a step of 0.1 that ends at 0.3 */
    double value = from;
    for (int64_t i = 1; value <= to + slack; i++) {
        if (json_array_size(run->out) >= VALUES_MAX) {
            return fail(run, "a range of more than %d values", VALUES_MAX);
        }
        add_number(run, value);
        value = isnan(factor) ? from + step * (double)i : value * factor;
    }
    return TRUE;
}

static gboolean expand_range(const Expansion *run, json_t *range)
{
    static const char *const known[] = {"from", "to", "step", "factor", "divisors"};
    const char *key;
    json_t *value;
    json_object_foreach (range, key, value) {
        gboolean ok = FALSE;
        for (size_t i = 0; i < G_N_ELEMENTS(known); i++) {
            ok = ok || g_str_equal(key, known[i]);
        }
        if (!ok) {
            return fail(run, "a range has no \"%s\"; it has from, to, step, factor, divisors", key);
        }
    }
    return json_object_get(range, "divisors") != NULL ? expand_divisors(run, range) : expand_steps(run, range);
}

static gboolean check_different(const Expansion *run)
{
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, free, NULL);
    size_t i;
    json_t *value;
    json_array_foreach (run->out, i, value) {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        if (g_hash_table_contains(seen, text)) {
            fail(run, "%s stands there twice", text);
            free(text);
            return FALSE;
        }
        g_hash_table_add(seen, text);
    }
    return TRUE;
}

json_t *sweep_values_expand(json_t *values, SweepNames *names, json_t *base, GError **error)
{
    g_autoptr(json_t) out = json_array();
    Expansion run = {names, base, out, error};
    size_t i;
    json_t *value;
    if (is_range(values)) {
        return expand_range(&run, values) && check_different(&run) ? g_steal_pointer(&out) : NULL;
    }
    if (!json_is_array(values) || json_array_size(values) == 0) {
        fail(&run, "expected a list of values, or a range {\"from\": 1, \"to\": 64, \"factor\": 2}");
        return NULL;
    }
    json_array_foreach (values, i, value) {
        if (is_range(value) && !expand_range(&run, value)) {
            return NULL;
        }
        if (!is_range(value)) {
            json_array_append(out, value);
        }
    }
    return check_different(&run) ? g_steal_pointer(&out) : NULL;
}
