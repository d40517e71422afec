/* Expert placement: packing, conservation, refusals. */
#include "models/placement.h"

#include "sim/base/error.h"
#include "sim/base/rng.h"
#include "tests/check.h"

static void test_pack(void **state)
{
    static const double weights[] = {5, 9, 1, 7};
    int64_t bin[4];
    int64_t place[4];
    (void)state;
    placement_pack(weights, 4, 2, bin, place); /* 9 and 1, 7 and 5 */
    check_int(bin[1], 0);
    check_int(bin[3], 1);
    check_int(bin[0], 1);
    check_int(bin[2], 0);
    check_int(place[0], 1);
    placement_pack(weights, 4, 4, bin, place);
    for (int64_t i = 0; i < 4; i++) {
        check_int(bin[i], i);
        check_int(place[i], 0);
    }
}

/* Random loads: every expert is somewhere, copies add up, replicas lower the busiest GPU. */
static void test_eplb(void **state)
{
    enum { E = 64, P = 80, GPUS = 8 };
    double loads[E];
    double gpu_load[GPUS];
    int64_t expert[P];
    int64_t copies[E];
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        PlacementShape shape = {.experts = E, .slots = P, .groups = 8, .nodes = seed % 2 == 0 ? 2 : 1, .gpus = GPUS};
        double sum = 0;
        double found = 0;
        for (int e = 0; e < E; e++) {
            loads[e] = floor(exp(3 * rng_uniform(seed, RNG_TEST, (uint64_t)e)) * 100);
            sum += loads[e];
        }
        assert_true(placement_eplb(&shape, loads, expert, copies, NULL));
        int64_t held[E] = {0};
        for (int s = 0; s < P; s++) {
            held[expert[s]]++;
        }
        for (int e = 0; e < E; e++) {
            check_int(held[e], copies[e]);
            assert_true(copies[e] >= 1);
        }
        placement_gpu_loads(&shape, loads, expert, copies, gpu_load);
        for (int g = 0; g < GPUS; g++) {
            found += gpu_load[g];
            assert_true(gpu_load[g] < 1.25 * sum / GPUS);
        }
        check_close(found, sum, 1e-12);
        check_int(placement_n_moves(expert, expert, P), 0);
    }
}

static void test_refused(void **state)
{
    static const PlacementShape shapes[] = {
        {.experts = 8, .slots = 7, .groups = 1, .nodes = 1, .gpus = 7},
        {.experts = 8, .slots = 9, .groups = 1, .nodes = 1, .gpus = 2},
        {.experts = 8, .slots = 8, .groups = 3, .nodes = 1, .gpus = 2},
        {.experts = 8, .slots = 8, .groups = 1, .nodes = 3, .gpus = 4},
        {.experts = 8, .slots = 8, .groups = 1, .nodes = 0, .gpus = 4},
    };
    double loads[8] = {0};
    int64_t expert[9];
    int64_t copies[8];
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(shapes); i++) {
        GError *error = NULL;
        assert_false(placement_eplb(&shapes[i], loads, expert, copies, &error));
        check_error(&error, MOESIM_ERROR_INPUT, "GPUs must divide the slots");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pack), cmocka_unit_test(test_eplb),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("placement", tests, NULL, NULL);
}
