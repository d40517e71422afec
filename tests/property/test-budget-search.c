/*
 * Budget search: for any times, needs and room at all, more of either budget is never slower, to the last bit; and on surfaces as
 * caches have them it finds what trying everything finds.
 */
#include "tests/check.h"

#include <math.h>

#include "sim/base/rng.h"
#include "workloads/run/budget-search.h"

enum { N_HBM = 16, N_DDR = 8 };

typedef struct Surface {
    double time_s[N_DDR + 1][N_HBM + 1];
    int need[N_DDR + 1][N_HBM + 1]; /* of HBM */
    gboolean has_room[N_DDR + 1][N_HBM + 1];
    int budget;
    int n_measured;
} Surface;

static gboolean admits(void *self, BudgetPoint point)
{
    const Surface *surface = self;
    return surface->need[point.ddr][point.hbm] <= surface->budget;
}

static gboolean measure(void *self, BudgetPoint point, double *ret_s, gboolean *ret_has_room)
{
    Surface *surface = self;
    surface->n_measured++;
    *ret_s = surface->time_s[point.ddr][point.hbm];
    *ret_has_room = surface->has_room[point.ddr][point.hbm];
    return TRUE;
}

/* Time falls with HBM, falls and rises with DDR; more or less of it is noise. */
static void draw_surface(Surface *surface, uint64_t seed, double noise, double no_room)
{
    uint64_t at = 1;
    double turn = (double)rng_below(seed, RNG_TEST, 0, N_DDR + 1);
    *surface = (Surface){0};
    for (int d = 0; d <= N_DDR; d++) {
        for (int x = 0; x <= N_HBM; x++) {
            double ideal = 100 - 2.0 * x + fabs(d - turn) * 3;
            surface->time_s[d][x] = ideal + noise * (double)rng_below(seed, RNG_TEST, at++, 100) / 100;
            surface->need[d][x] = x == 0 ? 0 : (int)((double)x + noise * (double)rng_below(seed, RNG_TEST, at++, 3) / 10);
            surface->has_room[d][x] = (double)rng_below(seed, RNG_TEST, at++, 1000) >= 1000 * no_room * x / N_HBM;
        }
    }
}

static double value_of(Surface *surface, int hbm, int ddr)
{
    BudgetSpace space = {N_HBM, N_DDR, 2, admits, measure, surface};
    BudgetPoint point;
    double s;
    gboolean failed;
    surface->budget = hbm;
    gboolean found = budget_search(&space, ddr, HUGE_VAL, &point, &s, &failed);
    assert_false(failed);
    if (!found) {
        return HUGE_VAL;
    }
    assert_true(point.ddr <= ddr && surface->need[point.ddr][point.hbm] <= hbm && surface->has_room[point.ddr][point.hbm]);
    assert_true(surface->time_s[point.ddr][point.hbm] == s);
    return s;
}

static void test_monotone(void **state)
{
    static const double noises[] = {0, 0.5, 5, 50, 1000};
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        Surface surface;
        double before[N_HBM + 2];
        draw_surface(&surface, seed, noises[seed % G_N_ELEMENTS(noises)], seed % 3 == 0 ? 0.5 : 0);
        for (int d = 0; d <= N_DDR; d++) {
            double last = HUGE_VAL;
            for (int hbm = 0; hbm <= N_HBM + 1; hbm++) {
                double s = value_of(&surface, hbm, d);
                assert_true(s <= last && (d == 0 || s <= before[hbm]));
                last = before[hbm] = s;
            }
        }
    }
}

/* Without noise the best of all that a budget admits, with a few trials. */
static void test_best(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        Surface surface;
        draw_surface(&surface, seed, 0, 0);
        for (int d = 0; d <= N_DDR; d++) {
            for (int hbm = 0; hbm <= N_HBM; hbm++) {
                double best = HUGE_VAL;
                for (int i = 0; i <= d; i++) {
                    for (int x = 0; x <= N_HBM; x++) {
                        best = surface.need[i][x] <= hbm ? fmin(best, surface.time_s[i][x]) : best;
                    }
                }
                surface.n_measured = 0;
                check_close(value_of(&surface, hbm, d), best, 0.06); /* between turns of the coarse steps it may stop one short */
                assert_true(surface.n_measured < 60);
            }
        }
    }
}

/* Nothing below the cap is nothing. */
static void test_cap(void **state)
{
    (void)state;
    Surface surface;
    BudgetSpace space = {N_HBM, N_DDR, 2, admits, measure, &surface};
    BudgetPoint point;
    double s;
    gboolean failed;
    draw_surface(&surface, 1, 0, 0);
    surface.budget = N_HBM;
    double best = value_of(&surface, N_HBM, N_DDR);
    assert_false(budget_search(&space, N_DDR, best, &point, &s, &failed));
    assert_false(failed);
    assert_true(budget_search(&space, N_DDR, best * 1.001, &point, &s, &failed));
    assert_true(s == best);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_monotone), cmocka_unit_test(test_best), cmocka_unit_test(test_cap)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
