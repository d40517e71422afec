/* Tokens that travel once: exact for even loads, within what the rows allow for all, one for all to all. */
#include "tests/check.h"

#include "models/moe-spread.h"
#include "sim/base/rng.h"
#include "workloads/plan/arrivals.h"

static void test_even(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{256, 8, 8, 4}, {256, 8, 1, 1}, {128, 8, 0, 0}, {896, 16, 0, 0}, {64, 6, 0, 0}, {160, 6, 8, 3}};
    for (size_t i = 0; i < G_N_ELEMENTS(shapes); i++) {
        ArrivalSpec spec = {
            .tokens = 1 << 20, .experts = shapes[i][0], .top_k = shapes[i][1], .groups = shapes[i][2], .topk_groups = shapes[i][3]};
        MoeSpread spread = {shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]};
        for (int64_t n = 2; n <= 32; n *= 2) {
            if (shapes[i][0] % n == 0) {
                int64_t rows = spec.tokens * spec.top_k / n;
                double want = moe_spread_parts(&spread, n) / (double)n * (double)spec.tokens;
                check_close((double)arrivals_expected(&spec, rows, n), want, 1e-3);
            }
        }
    }
}

static void test_bounds(void **state)
{
    (void)state;
    for (uint64_t draw = 0; draw < 20000; draw += 4) {
        ArrivalSpec spec = {.tokens = (int64_t)rng_below(1, RNG_TEST, draw, 300),
                            .top_k = 1 + (int64_t)rng_below(1, RNG_TEST, draw + 1, 8),
                            .experts = 64};
        int64_t n_parts = (int64_t)1 << rng_below(1, RNG_TEST, draw + 2, 6), here = 64 / n_parts;
        int64_t most = spec.tokens * MIN(spec.top_k, here);
        int64_t rows = (int64_t)rng_below(1, RNG_TEST, draw + 3, (uint64_t)most + 1);
        int64_t got = arrivals_expected(&spec, rows, n_parts);
        assert_true(got <= MIN(rows, spec.tokens) && got * spec.top_k >= rows);
        spec.to_all = TRUE;
        check_int(arrivals_expected(&spec, rows, n_parts), spec.tokens);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_even), cmocka_unit_test(test_bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
