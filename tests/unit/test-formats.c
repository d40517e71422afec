/*
 * Number formats: every code decodes to a value that encodes to it again, and every float goes to the nearest code.
 * (Bit patterns are compared with golden tables in test-golden.)
 */
#include "tests/check.h"

#include "models/formats.h"

typedef struct Format {
    const char *name;
    int n_codes;
    uint8_t (*encode)(float);
    float (*decode)(uint8_t);
    float max;
    gboolean has_inf;
} Format;

static const Format formats[] = {
    {"E4M3", 256, format_e4m3_encode, format_e4m3_decode, 448, FALSE},
    {"E5M2", 256, format_e5m2_encode, format_e5m2_decode, 57344, TRUE},
    {"E2M1", 16, format_e2m1_encode, format_e2m1_decode, 6, FALSE},
};

static void test_round_trip(void **state)
{
    const Format *f = *state;
    for (int code = 0; code < f->n_codes; code++) {
        float x = f->decode((uint8_t)code);
        if (isnan(x)) {
            assert_true(isnan(f->decode(f->encode(x))));
        } else {
            check_int(f->encode(x), code);
        }
    }
}

/* Distance to the nearest value by trying all of them; ties must go to the even code. */
static void test_nearest(void **state)
{
    const Format *f = *state;
    for (int i = -4000; i <= 4000; i++) {
        float x = ldexpf(1.0f + (float)(abs(i) % 61) / 64.0f, abs(i) % 24 - 18) * (i < 0 ? -1.0f : 1.0f);
        double best = INFINITY;
        if (fabsf(x) > f->max) {
            continue;
        }
        for (int code = 0; code < f->n_codes; code++) {
            double y = (double)f->decode((uint8_t)code);
            best = isfinite(y) ? fmin(best, fabs(y - (double)x)) : best;
        }
        uint8_t got = f->encode(x);
        check_close(fabs((double)f->decode(got) - (double)x), best, 1e-12);
        double step = fabs((double)f->decode((uint8_t)(got ^ 1)) - (double)f->decode(got));
        if (step > 0 && fabs(best - step / 2) < step * 1e-9) {
            check_int(got & 1, 0);
        }
    }
}

static void test_overflow(void **state)
{
    const Format *f = *state;
    float over = f->decode(f->encode(INFINITY));
    assert_true(f->has_inf ? isinf(over) != 0 : over >= f->max && over <= f->max);
    assert_true(signbit(f->decode(f->encode(-0.0f))) != 0);
    assert_true(f->decode(f->encode(-1e30f)) < 0);
}

static void test_bf16(void **state)
{
    (void)state;
    check_int(format_bf16_encode(1.0f), 0x3f80);
    check_int(format_bf16_encode(1.00390625f), 0x3f80); /* a tie, to even */
    check_int(format_bf16_encode(1.01171875f), 0x3f82); /* a tie, to even */
    check_int(format_bf16_encode(3.4e38f), 0x7f80);     /* to infinity */
    assert_true(isnan(format_bf16_decode(format_bf16_encode(NAN))));
}

/* Gaussian data: relative root-mean-square errors as the formats' descriptions give them. */
static void test_block_errors(void **state)
{
    (void)state;
    enum { N = 256 * 256 };
    g_autofree float *x = g_new0(float, N), *y = g_new0(float, N), *scale = g_new0(float, N / 128);
    g_autofree uint8_t *code = g_new0(uint8_t, N), *mx_scale = g_new0(uint8_t, N / 32);
    double squares = 0, off[3] = {0};
    for (int i = 0; i < N; i += 2) {
        double u = fmod(0.5 + 0.618033988749895 * (i + 1), 1.0), v = fmod(0.7548776662466927 * (i + 3), 1.0);
        x[i] = (float)(sqrt(-2 * log(u + 1e-12)) * cos(2 * G_PI * v));
        x[i + 1] = (float)(sqrt(-2 * log(u + 1e-12)) * sin(2 * G_PI * v));
    }
    const FormatBlocks rows = {256, 256, 1, 128};
    for (int kind = 0; kind < 3; kind++) {
        if (kind == 0) {
            format_fp8_quantize(&rows, x, FALSE, scale, code);
            format_fp8_dequantize(&rows, scale, code, y);
        } else if (kind == 1) {
            format_mxfp8_quantize(N, x, mx_scale, code);
            format_mxfp8_dequantize(N, mx_scale, code, y);
        } else {
            format_mxfp4_quantize(N, x, mx_scale, code);
            format_mxfp4_dequantize(N, mx_scale, code, y);
        }
        squares = 0;
        for (int i = 0; i < N; i++) {
            squares += (double)x[i] * (double)x[i];
            off[kind] += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        }
        off[kind] = sqrt(off[kind] / squares);
    }
    assert_true(off[0] > 0.02 && off[0] < 0.03);
    assert_true(off[1] > 0.02 && off[1] < 0.03);
    assert_true(off[2] > 0.09 && off[2] < 0.13);
}

int main(void)
{
    struct CMUnitTest tests[G_N_ELEMENTS(formats) * 3 + 2];
    size_t n = 0;
    for (size_t i = 0; i < G_N_ELEMENTS(formats); i++) {
        void *at = (void *)(guintptr)&formats[i];
        tests[n++] = (struct CMUnitTest){.name = "round trip", .test_func = test_round_trip, .initial_state = at};
        tests[n++] = (struct CMUnitTest){.name = "nearest", .test_func = test_nearest, .initial_state = at};
        tests[n++] = (struct CMUnitTest){.name = "overflow", .test_func = test_overflow, .initial_state = at};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_bf16);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_block_errors);
    return _cmocka_run_group_tests("formats", tests, n, NULL, NULL);
}
