#include "tests/check.h"

#include "sim/base/error.h"
#include "sim/base/quantity.h"

static void test_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } cases[] = {
        {"0", 0},
        {"4096", 4096},
        {"1 B", 1},
        {"1 kB", 1000},
        {"1KiB", 1024},
        {"0.5GiB", 536870912},
        {".5 KiB", 512},
        {"141 GB", 141000000000},
        {"80.3 GB", 80300000000},
        {"80   GiB", 85899345920},
        {"1e3 MB", 1000000000},
        {"1.5 B", 2},
        {"9223372036854775807", G_MAXINT64},
        {"9007199254740993", 9007199254740993},
        {"8191 PiB", 8191LL << 50},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        int64_t bytes = -1;
        assert_true(quantity_parse_bytes(cases[i].text, &bytes, &error));
        check_int(bytes, cases[i].bytes);
    }
}

static void test_not_bytes(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "",       " 1",       "-1",   "+1",      "1 KB",    "1 gb", "1 GB ", "GB",
        "1,000",  "0x10",     "inf",  "nan",     "1e400",   "1 G",  "1 Gb",  "9223372036854775808",
        "1 GB/s", "8192 PiB", "1e19", "9300 PB", "1..5 GB",
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        int64_t bytes = -1;
        if (quantity_parse_bytes(cases[i], &bytes, &error)) {
            fail_msg("\"%s\" was read as %" G_GINT64_FORMAT, cases[i], bytes);
        }
        check_int(bytes, -1);
        check_error(&error, MOESIM_ERROR_INPUT, cases[i]);
    }
}

static void test_rates(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double bytes_per_s;
    } cases[] = {
        {"4.8 TB/s", 4.8e12}, {"400 Gb/s", 50e9}, {"450GB/s", 450e9}, {"1 GiB/s", 1073741824.0}, {"8 b/s", 1},
    };
    g_autoptr(GError) error = NULL;
    double rate;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        assert_true(quantity_parse_rate(cases[i].text, &rate, &error));
        check_close(rate, cases[i].bytes_per_s, 1e-15);
    }
    assert_false(quantity_parse_rate("450 GB", &rate, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "GB/s");
    assert_false(quantity_parse_rate("450", &rate, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "\"450\"");
    assert_true(quantity_parse_flops_rate("1.98 PFLOP/s", &rate, &error));
    check_close(rate, 1.98e15, 1e-15);
    assert_false(quantity_parse_flops_rate("989 TFLOPS", &rate, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "TFLOP/s");
}

static void test_times(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        SimTime ns;
    } cases[] = {
        {"1.2 ms", 1200000}, {"11 us", 11000}, {"11 \xc2\xb5s", 11000}, {"5 s", 5000000000},
        {"0.4 ns", 0},       {"0.5 ns", 1},    {"2 min", 120000000000}, {"1h", 3600000000000},
    };
    g_autoptr(GError) error = NULL;
    SimTime ns;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        assert_true(quantity_parse_time(cases[i].text, &ns, &error));
        check_int(ns, cases[i].ns);
    }
    assert_false(quantity_parse_time("5", &ns, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "with ns, us");
    assert_false(quantity_parse_time("1e10 s", &ns, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "292 years");
}

static void check_text(char *got, const char *want)
{
    check_string(got, want);
    g_free(got);
}

static void test_format(void **state)
{
    (void)state;
    check_text(quantity_format_bytes(0), "0 B");
    check_text(quantity_format_bytes(1000), "1000 B");
    check_text(quantity_format_bytes(1024), "1 KiB");
    check_text(quantity_format_bytes(46600000000), "43.4 GiB");
    check_text(quantity_format_bytes(80LL << 30), "80 GiB");
    check_text(quantity_format_bytes((1LL << 30) - 1), "1 GiB");
    check_text(quantity_format_bytes(-1536), "-1.5 KiB");
    check_text(quantity_format_bytes(G_MAXINT64), "8 EiB");
    check_text(quantity_format_rate(450e9), "450 GB/s");
    check_text(quantity_format_rate(4.8e12), "4.8 TB/s");
    check_text(quantity_format_rate(999.96e9), "1 TB/s");
    check_text(quantity_format_time(1234000), "1.234 ms");
    check_text(quantity_format_time(12345678), "12.35 ms");
    check_text(quantity_format_time(999), "999 ns");
    check_text(quantity_format_time(7654321000000), "7654 s");
}

static void test_arithmetic(void **state)
{
    (void)state;
    int64_t r = -1;
    assert_true(quantity_mul(3037000499, 3037000499, &r));
    check_int(r, 3037000499LL * 3037000499LL);
    assert_false(quantity_mul(3037000500, 3037000500, &r));
    assert_false(quantity_mul(-1, 1, &r));
    assert_true(quantity_mul(0, G_MAXINT64, &r));
    check_int(r, 0);
    assert_true(quantity_add(G_MAXINT64 - 1, 1, &r));
    check_int(r, G_MAXINT64);
    assert_false(quantity_add(G_MAXINT64, 1, &r));
    check_int(quantity_ns(1.5e-9), 2);
    check_int(quantity_ns(0.25), 250000000);
    check_int(quantity_ns(0), 0);
    check_int(quantity_ns(1e300), (int64_t)1 << 50);
    check_int(quantity_ns((double)INFINITY), (int64_t)1 << 50);
    check_int(quantity_div_up(10, 3), 4);
    check_int(quantity_div_up(9, 3), 3);
    check_int(quantity_div_up(G_MAXINT64, 2), G_MAXINT64 / 2 + 1);
    check_int(quantity_round_up(513, 512), 1024);
    check_int(quantity_round_up(0, 512), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes), cmocka_unit_test(test_not_bytes), cmocka_unit_test(test_rates),
        cmocka_unit_test(test_times), cmocka_unit_test(test_format),    cmocka_unit_test(test_arithmetic),
    };
    return cmocka_run_group_tests_name("quantity", tests, NULL, NULL);
}
