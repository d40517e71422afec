/* Paces of activities that share links, against water-filling in real numbers and against what makes them max-min fair. */
#include "tests/check.h"

#include "sim/base/link-load.h"
#include "sim/base/rng.h"

enum { N_ROUNDS = 20000, N_MAX = 6 };

static void test_parts(void **state)
{
    (void)state;
    double parts[LINK_LOADS_MAX] = {1.0, 0.5, 1e-9, 0.0}, over[LINK_LOADS_MAX] = {7.0, -1.0, 0.25, 1.0};
    LinkLoad load = link_load_of(parts), other = link_load_of(over), most = link_load_max(load, other);
    static const guint32 want[LINK_LOADS_MAX] = {1023, 512, 1, 0}, want_over[LINK_LOADS_MAX] = {1023, 0, 256, 1023};
    for (int l = 0; l < LINK_LOADS_MAX; l++) {
        check_int(link_load_part(load, l), want[l]);
        check_int(link_load_part(other, l), want_over[l]);
        check_int(link_load_part(most, l), MAX(want[l], want_over[l]));
    }
    check_int(load & ~LINK_LOAD_MASK, 0);
}

/* By hand: two that fill a link get half each; a third that does not cross it goes on at its own pace. */
static void test_by_hand(void **state)
{
    (void)state;
    double full[LINK_LOADS_MAX] = {1.0}, both[LINK_LOADS_MAX] = {1.0, 0.5}, second[LINK_LOADS_MAX] = {0.0, 0.5};
    LinkLoad loads[3] = {link_load_of(full), link_load_of(both), link_load_of(second)};
    guint32 paces[3];
    link_load_paces(loads, 1, paces);
    check_int(paces[0], LINK_PACE_ONE);
    link_load_paces(loads, 3, paces);
    check_int(paces[0], LINK_PACE_ONE / 2);
    check_int(paces[1], LINK_PACE_ONE / 2);
    check_int(paces[2], LINK_PACE_ONE);
    assert_true(link_loads_meet(loads, 2));
    assert_false(link_loads_meet(loads + 2, 1));
}

/* The slow way: all rise together until a link is full. */
static void fill(const LinkLoad *loads, int n, double *paces)
{
    gboolean fixed[N_MAX] = {FALSE};
    double pace = 0.0;
    while (pace < 1.0) {
        double next = 1.0;
        int link = -1;
        for (int l = 0; l < LINK_LOADS_MAX; l++) {
            double left = LINK_PART_ONE, rising = 0.0;
            for (int i = 0; i < n; i++) {
                double part = link_load_part(loads[i], l);
                left -= fixed[i] ? paces[i] * part : 0.0;
                rising += fixed[i] ? 0.0 : part;
            }
            if (rising > 0.0 && left / rising < next) {
                next = left / rising;
                link = l;
            }
        }
        pace = next;
        for (int i = 0; i < n; i++) {
            paces[i] = fixed[i] ? paces[i] : pace;
            fixed[i] = fixed[i] || (link >= 0 && link_load_part(loads[i], link) > 0);
        }
    }
}

/* Each of the others is rounded by a 65536th of its pace, and up to all of a link is left to who takes little of it. */
static double rounding(LinkLoad load, int n)
{
    guint32 least = LINK_PART_ONE;
    for (int l = 0; l < LINK_LOADS_MAX; l++) {
        guint32 part = link_load_part(load, l);
        least = part > 0 ? MIN(least, part) : least;
    }
    return (double)n * LINK_PART_ONE / (double)least / LINK_PACE_ONE;
}

static void check_fair(const LinkLoad *loads, int n, const guint32 *paces)
{
    gboolean bounded[N_MAX] = {FALSE};
    for (int l = 0; l < LINK_LOADS_MAX; l++) {
        uint64_t used = 0, slack = 0;
        guint32 most = 0;
        for (int i = 0; i < n; i++) {
            guint32 part = link_load_part(loads[i], l);
            used += (uint64_t)part * paces[i];
            slack += part;
            most = part > 0 ? MAX(most, paces[i]) : most;
        }
        assert_true(used <= (uint64_t)LINK_PART_ONE * LINK_PACE_ONE);
        for (int i = 0; i < n; i++) { /* full but for the rounding, and nobody there is faster */
            bounded[i] |= link_load_part(loads[i], l) > 0 && paces[i] + 1 >= most &&
                          used + slack >= (uint64_t)LINK_PART_ONE * LINK_PACE_ONE;
        }
    }
    for (int i = 0; i < n; i++) {
        assert_true(paces[i] == LINK_PACE_ONE || bounded[i]);
        assert_true(link_loads_meet(loads, n) || paces[i] == LINK_PACE_ONE);
    }
}

static void test_random(void **state)
{
    (void)state;
    int n_slowed = 0;
    for (uint64_t round = 0; round < N_ROUNDS; round++) {
        int n = 1 + (int)rng_below(1, RNG_TEST, round, N_MAX);
        LinkLoad loads[N_MAX];
        guint32 paces[N_MAX];
        double want[N_MAX] = {0};
        for (int i = 0; i < n; i++) {
            double parts[LINK_LOADS_MAX];
            for (int l = 0; l < LINK_LOADS_MAX; l++) {
                uint64_t draw = (round * N_MAX + (uint64_t)i) * LINK_LOADS_MAX + (uint64_t)l;
                parts[l] = rng_below(2, RNG_TEST, draw, 3) == 0 ? 0.0 : (double)rng_below(3, RNG_TEST, draw, 1001) / 1000.0;
            }
            loads[i] = link_load_of(parts);
        }
        link_load_paces(loads, n, paces);
        fill(loads, n, want);
        check_fair(loads, n, paces);
        for (int i = 0; i < n; i++) {
            assert_true(fabs((double)paces[i] / LINK_PACE_ONE - want[i]) <= rounding(loads[i], n));
            n_slowed += paces[i] < LINK_PACE_ONE;
        }
    }
    assert_true(n_slowed > N_ROUNDS / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts), cmocka_unit_test(test_by_hand),
                                       cmocka_unit_test(test_random)};
    return cmocka_run_group_tests_name("link-load", tests, NULL, NULL);
}
