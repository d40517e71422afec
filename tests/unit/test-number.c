/* Numbers as text: what the C library writes, byte for byte. */
#include "tests/check.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "reports/out/number.h"
#include "sim/base/rng.h"

enum { DRAWN = 300000 };

static void check_number(double value)
{
    char want[64];
    g_autoptr(GString) have = g_string_new(NULL);
    snprintf(want, sizeof want, "%.12g", value);
    number_append(have, value);
    check_string(have->str, want);
}

static void test_special(void **state)
{
    (void)state;
    static const double values[] = {0,       -0.0,   1,      -1,     0.1,    0.5,      1e-4,    9.99999999999e-5, 1e-5,   1e11,
                                    1e12,    1e15,   1e16,   1e17,   1e22,   1e23,     1e38,    1e39,             1e300,  -1e300,
                                    DBL_MAX, DBL_MIN, 5e-324, 0.3,    2.5,    12345678, 1e-16,   1e-17,            1.5e-10, 100};
    for (size_t i = 0; i < G_N_ELEMENTS(values); i++) {
        check_number(values[i]);
    }
    check_number(INFINITY);
    check_number(-INFINITY);
}

/* Any bits, sizes that results have, and numbers that lie on or next to where twelve digits round the other way. */
static void test_drawn(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < DRAWN; i++) {
        uint64_t bits = rng_below(1, RNG_TEST, i, G_MAXUINT64);
        double any, usual = ((double)(bits >> 20) - 0x1p43) * pow(10, (double)(i % 40) - 25);
        double tie = ((double)(bits >> 24) + 0.5) * pow(10, (double)(i % 24) - 12);
        memcpy(&any, &bits, sizeof any);
        if (isfinite(any)) {
            check_number(any);
        }
        check_number(usual);
        check_number(tie);
        check_number(nextafter(tie, INFINITY));
        check_number((double)(bits % 2000000000000u) / 2);
        check_number(nextafter(pow(10, (double)(i % 60) - 30), i % 2 == 0 ? 0 : INFINITY));
    }
}

static void test_integers(void **state)
{
    (void)state;
    static const int64_t values[] = {0, 1, -1, 9, 10, -10, 99, 100, G_MAXINT64, G_MININT64, G_MININT64 + 1};
    for (size_t i = 0; i < G_N_ELEMENTS(values) + 1000; i++) {
        int64_t value = i < G_N_ELEMENTS(values) ? values[i] : (int64_t)(rng_below(2, RNG_TEST, i, G_MAXUINT64) >> i % 64);
        g_autoptr(GString) have = g_string_new("x");
        g_autofree char *want = g_strdup_printf("x%" PRId64, value);
        number_append_integer(have, value);
        check_string(have->str, want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_special),
        cmocka_unit_test(test_drawn),
        cmocka_unit_test(test_integers),
    };
    return cmocka_run_group_tests_name("number", tests, NULL, NULL);
}
