#include "tests/check.h"

#include "sim/base/rng.h"

/* Fixed for ever: routing drawn with a seed must not change with a release. */
static void test_fixed(void **state)
{
    (void)state;
    static const uint64_t draws[] = {0x6580c7d77fbfcb67u, 0x34ac5060550388afu, 0x14238e2c417e0d78u};
    for (uint64_t i = 0; i < G_N_ELEMENTS(draws); i++) {
        assert_true(rng_u64(1, RNG_ROUTING, i) == draws[i]);
    }
    check_int(rng_u64(0, RNG_TEST, 0) != rng_u64(0, RNG_TEST, 1), 1);
    check_int(rng_u64(0, RNG_TEST, 0) != rng_u64(1, RNG_TEST, 0), 1);
    check_int(rng_u64(0, RNG_TEST, 0) != rng_u64(0, RNG_VALUES, 0), 1);
}

/* Every bit is set in half of the draws, and flips in half when any argument's bit flips. */
static void test_bits(void **state)
{
    (void)state;
    enum { N = 20000 };
    for (int bit = 0; bit < 64; bit++) {
        int n_set = 0, n_flipped = 0;
        for (uint64_t i = 0; i < N; i++) {
            uint64_t draw = rng_u64(3, RNG_TEST, i);
            n_set += (int)(draw >> bit & 1);
            n_flipped += (int)((draw ^ rng_u64(3 ^ (uint64_t)1 << (i % 64), RNG_TEST, i)) >> bit & 1);
        }
        assert_in_range(n_set, N / 2 - 400, N / 2 + 400); /* 5.6 standard deviations */
        assert_in_range(n_flipped, N / 2 - 400, N / 2 + 400);
    }
}

static void test_moments(void **state)
{
    (void)state;
    enum { N = 200000 };
    double uniform = 0, gumbel = 0, normal = 0, normal2 = 0, least = 1, most = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(1, RNG_TEST, i), z = rng_normal(1, RNG_TEST, i);
        least = MIN(least, u);
        most = MAX(most, u);
        uniform += u / N;
        gumbel += rng_gumbel(1, RNG_TEST, i) / N;
        normal += z / N;
        normal2 += z * z / N;
    }
    assert_true(least > 0 && most < 1);
    check_close(uniform, 0.5, 0.01);
    check_close(gumbel, 0.5772156649, 0.02);
    assert_true(fabs(normal) < 0.01);
    check_close(normal2, 1, 0.02);
}

static void test_below(void **state)
{
    (void)state;
    enum { N = 70000, FACES = 7 };
    int counts[FACES] = {0};
    for (uint64_t i = 0; i < N; i++) {
        uint64_t face = rng_below(5, RNG_TEST, i, FACES);
        assert_true(face < FACES);
        counts[face]++;
    }
    for (int i = 0; i < FACES; i++) {
        assert_in_range(counts[i], N / FACES - 500, N / FACES + 500);
    }
    check_int(rng_below(5, RNG_TEST, 0, 1), 0);
    assert_true(rng_below(5, RNG_TEST, 0, (uint64_t)1 << 63) < (uint64_t)1 << 63);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixed),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_below),
    };
    return cmocka_run_group_tests_name("rng", tests, NULL, NULL);
}
