/*
 * A double times or over an exact power of ten is rounded once, to a long double of at least 64 bits: the twelve digits before
 * the point are certain unless what follows them is next to one half, and then the C library decides.
 */
#include "reports/out/number.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DIGITS = 12, POWER_MAX = 27, TEXT_MAX = 40 }; /* 10^27 = 2^27 x 5^27, of 63 bits */

static const uint64_t least = 100000000000u, end = 1000000000000u; /* of DIGITS digits */

static const long double powers[POWER_MAX + 1] = {1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,  1e7L,  1e8L,  1e9L,
                                                  1e10L, 1e11L, 1e12L, 1e13L, 1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L,
                                                  1e20L, 1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L};

static void append_by_library(GString *out, double value)
{
    char text[TEXT_MAX];
    int n = snprintf(text, sizeof text, "%.*g", DIGITS, value);
    g_string_append_len(out, text, n);
}

/* The first DIGITS digits of a positive number, rounded, and the place of the first: value ~ d.ddd x 10^place. */
static gboolean find_digits(double value, uint64_t *ret_digits, int *ret_place)
{
    int exponent;
    (void)frexp(value, &exponent);
    int place = (int)floor((exponent - 1) * 0.30102999566398119521); /* or one too low */
    for (;; place++) {
        int power = DIGITS - 1 - place;
        if (power > POWER_MAX || power < -POWER_MAX) {
            return FALSE;
        }
        long double scaled = power >= 0 ? (long double)value * powers[power] : (long double)value / powers[-power];
        if (scaled >= (long double)end) {
            continue;
        }
        uint64_t digits = (uint64_t)scaled;
        long double rest = scaled - (long double)digits;
        if (fabsl(rest - 0.5L) < 1e-5L || digits < least) {
            return FALSE;
        }
        digits += rest > 0.5L;
        *ret_place = digits == end ? place + 1 : place;
        *ret_digits = digits == end ? least : digits;
        return TRUE;
    }
}

/* Writes digits and place in the way of %g. Returns the length. */
static size_t write_digits(char *text, uint64_t number, int place)
{
    char digits[DIGITS];
    size_t at = 0;
    int n = DIGITS;
    for (int i = DIGITS; i-- > 0; number /= 10) {
        digits[i] = (char)('0' + number % 10);
    }
    while (n > 1 && digits[n - 1] == '0') {
        n--;
    }
    gboolean is_scientific = place < -4 || place >= DIGITS;
    int whole = is_scientific ? 1 : place + 1; /* digits before the point */
    if (whole <= 0) {
        memcpy(text, "0.0000", 2 + (size_t)-whole);
        at = 2 + (size_t)-whole;
        whole = 0;
    }
    for (int i = 0; i < MAX(n, whole); i++) {
        if (i == whole && i > 0) {
            text[at++] = '.';
        }
        text[at++] = i < n ? digits[i] : '0';
    }
    if (is_scientific) {
        int size = ABS(place);
        text[at++] = 'e';
        text[at++] = place < 0 ? '-' : '+';
        text[at++] = (char)('0' + size / 10);
        text[at++] = (char)('0' + size % 10);
    }
    return at;
}

void number_append(GString *out, double value)
{
    char text[TEXT_MAX];
    uint64_t digits;
    int place;
    if (LDBL_MANT_DIG < 64 || !isnormal(value) || !find_digits(fabs(value), &digits, &place)) {
        append_by_library(out, value);
        return;
    }
    text[0] = '-';
    size_t sign = value < 0 ? 1 : 0, n = write_digits(text + sign, digits, place);
    g_string_append_len(out, text, (gssize)(sign + n));
}

void number_append_integer(GString *out, int64_t value)
{
    char text[TEXT_MAX];
    size_t at = sizeof text;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do {
        text[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (value < 0) {
        text[--at] = '-';
    }
    g_string_append_len(out, text + at, (gssize)(sizeof text - at));
}
