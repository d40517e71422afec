#include "sim/base/quantity.h"

#include <math.h>
#include <string.h>

#include "sim/base/error.h"

/* A unit and what one of it is in the base unit. */
typedef struct Unit {
    const char *name;
    double factor;
} Unit;

static const Unit byte_units[] = {
    {"B", 1},
    {"kB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
    {"PB", 1e15},
    {"KiB", 1024.0},
    {"MiB", 1048576.0},
    {"GiB", 1073741824.0},
    {"TiB", 1099511627776.0},
    {"PiB", 1125899906842624.0},
};

static const Unit rate_units[] = {
    {"B/s", 1},       {"kB/s", 1e3},     {"MB/s", 1e6},        {"GB/s", 1e9},           {"TB/s", 1e12},
    {"PB/s", 1e15},   {"KiB/s", 1024.0}, {"MiB/s", 1048576.0}, {"GiB/s", 1073741824.0}, {"TiB/s", 1099511627776.0},
    {"b/s", 1.0 / 8}, {"kb/s", 1e3 / 8}, {"Mb/s", 1e6 / 8},    {"Gb/s", 1e9 / 8},       {"Tb/s", 1e12 / 8},
};

static const Unit flops_units[] = {
    {"FLOP/s", 1},     {"kFLOP/s", 1e3},  {"MFLOP/s", 1e6},  {"GFLOP/s", 1e9},
    {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}, {"EFLOP/s", 1e18}, {"GOP/s", 1e9}, /* integer formats */
    {"TOP/s", 1e12},   {"POP/s", 1e15},
};

static const Unit time_units[] = {
    {"ns", 1},   {"us", 1e3}, {"\xc2\xb5s", 1e3}, /* micro sign */
    {"ms", 1e6}, {"s", 1e9},  {"min", 60e9},      {"h", 3600e9},
};

/* 2^63, the first double that does not fit. */
static const double int64_limit = 9223372036854775808.0;

/* The number at the start of text; *ret_rest is behind it and behind spaces. FALSE unless finite and >= 0. */
static gboolean read_number(const char *text, double *ret_number, const char **ret_rest)
{
    if (!g_ascii_isdigit(text[0]) && !(text[0] == '.' && g_ascii_isdigit(text[1]))) {
        return FALSE;
    }
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
        return FALSE;
    }
    char *end;
    double number = g_ascii_strtod(text, &end);
    if (!isfinite(number)) {
        return FALSE;
    }
    *ret_number = number;
    *ret_rest = end + strspn(end, " ");
    return TRUE;
}

static const Unit *find_unit(const Unit *units, size_t n_units, const char *name)
{
    for (size_t i = 0; i < n_units; i++) {
        if (strcmp(units[i].name, name) == 0) {
            return &units[i];
        }
    }
    return NULL;
}

static gboolean fail(GError **error, const char *text, const char *what)
{
    g_autofree char *shown = error_shorten(text);
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "\"%s\" is not %s", shown, what);
    return FALSE;
}

/* What a text with a unit says, in the base unit. */
static gboolean parse(const char *text, const Unit *units, size_t n_units, const char *what, double *ret_value,
                      GError **error)
{
    double number;
    const char *rest;
    if (!read_number(text, &number, &rest)) {
        return fail(error, text, what);
    }
    const Unit *unit = find_unit(units, n_units, rest);
    if (unit == NULL || !isfinite(number * unit->factor)) {
        return fail(error, text, what);
    }
    *ret_value = number * unit->factor;
    return TRUE;
}

gboolean quantity_parse_bytes(const char *text, int64_t *ret_bytes, GError **error)
{
    static const char what[] = "a size: write bytes, or a number with B, kB, MB, GB, TB (powers of 1000) or "
                               "KiB, MiB, GiB, TiB (powers of 1024)";
    double number;
    const char *rest;
    if (!read_number(text, &number, &rest)) {
        return fail(error, text, what);
    }
    const Unit *unit = find_unit(byte_units, G_N_ELEMENTS(byte_units), *rest == '\0' ? "B" : rest);
    if (unit == NULL) {
        return fail(error, text, what);
    }
    /* Whole numbers stay exact beyond 2^53. */
    size_t n_digits = strspn(text, "0123456789");
    if (text + n_digits + strspn(text + n_digits, " ") == rest) {
        g_autofree char *digits = g_strndup(text, n_digits);
        guint64 whole;
        gboolean fits = g_ascii_string_to_unsigned(digits, 10, 0, G_MAXINT64, &whole, NULL) &&
                        quantity_mul((int64_t)whole, (int64_t)unit->factor, ret_bytes);
        return fits || fail(error, text, "a size below 2^63 bytes");
    }
    double bytes = floor(number * unit->factor + 0.5);
    if (bytes >= int64_limit) {
        return fail(error, text, "a size below 2^63 bytes");
    }
    *ret_bytes = (int64_t)bytes;
    return TRUE;
}

gboolean quantity_parse_rate(const char *text, double *ret_bytes_per_s, GError **error)
{
    return parse(text, rate_units, G_N_ELEMENTS(rate_units),
                 "a rate: write a number with GB/s (bytes), GiB/s or Gb/s (bits), or another prefix", ret_bytes_per_s,
                 error);
}

gboolean quantity_parse_flops_rate(const char *text, double *ret_flops_per_s, GError **error)
{
    return parse(text, flops_units, G_N_ELEMENTS(flops_units),
                 "a compute rate: write a number with GFLOP/s, TFLOP/s or PFLOP/s", ret_flops_per_s, error);
}

gboolean quantity_parse_time(const char *text, SimTime *ret_ns, GError **error)
{
    static const char what[] = "a time: write a number with ns, us, ms, s, min or h";
    double ns;
    if (!parse(text, time_units, G_N_ELEMENTS(time_units), what, &ns, error)) {
        return FALSE;
    }
    ns = floor(ns + 0.5);
    if (ns >= int64_limit) {
        return fail(error, text, "a time below 2^63 nanoseconds (292 years)");
    }
    *ret_ns = (SimTime)ns;
    return TRUE;
}

/* The value with n significant digits, zeros after the point dropped. */
static char *format_digits(double value, int n_digits)
{
    int n_before = 1;
    for (double rest = fabs(value); rest >= 10 && n_before < n_digits; rest /= 10) {
        n_before++;
    }
    char text[G_ASCII_DTOSTR_BUF_SIZE];
    g_autofree char *format = g_strdup_printf("%%.%df", n_digits - n_before);
    g_ascii_formatd(text, sizeof text, format, value);
    char *point = strchr(text, '.');
    if (point != NULL) {
        char *end = text + strlen(text);
        while (end[-1] == '0') {
            *--end = '\0';
        }
        if (end[-1] == '.') {
            *--end = '\0';
        }
    }
    return g_strdup(text);
}

/* The value in the last of the units (ascending, each step times smaller) that leaves it at least 1 after rounding. */
static char *format_units(double value, const char *const *units, size_t n_units, double step, int n_digits)
{
    size_t i = 0;
    double rounding = 1 - 0.5 * pow(10, -n_digits); /* 999.96 must not print as 1000 */
    while (i + 1 < n_units && fabs(value) >= step * rounding) {
        value /= step;
        i++;
    }
    g_autofree char *digits = format_digits(value, n_digits);
    return g_strconcat(digits, " ", units[i], NULL);
}

char *quantity_format_bytes(int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    return format_units((double)bytes, units, G_N_ELEMENTS(units), 1024, 3);
}

char *quantity_format_rate(double bytes_per_s)
{
    static const char *const units[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"};
    return format_units(bytes_per_s, units, G_N_ELEMENTS(units), 1000, 3);
}

char *quantity_format_time(SimTime ns)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    return format_units((double)ns, units, G_N_ELEMENTS(units), 1000, 4);
}

gboolean quantity_mul(int64_t a, int64_t b, int64_t *ret_product)
{
    if (a < 0 || b < 0 || (b > 0 && a > INT64_MAX / b)) {
        return FALSE;
    }
    *ret_product = a * b;
    return TRUE;
}

gboolean quantity_add(int64_t a, int64_t b, int64_t *ret_sum)
{
    if (a < 0 || b < 0 || a > INT64_MAX - b) {
        return FALSE;
    }
    *ret_sum = a + b;
    return TRUE;
}

SimTime quantity_ns(double seconds)
{
    g_assert(seconds >= 0);
    return (SimTime)fmin(floor(seconds * 1e9 + 0.5), 0x1p50);
}

int64_t quantity_div_up(int64_t a, int64_t b)
{
    g_assert(a >= 0 && b > 0);
    return a / b + (a % b != 0);
}

int64_t quantity_round_up(int64_t a, int64_t b)
{
    int64_t rounded;
    gboolean fits = quantity_mul(quantity_div_up(a, b), b, &rounded);
    g_assert(fits);
    return rounded;
}
