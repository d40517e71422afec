/* Capacity, drop rules, slot order and the way of rows between ranks, by hand-made examples. */
#include "models/moe-tables.h"

#include "tests/check.h"

/* reference: the examples of the capacity rules that published systems document. */
static void test_capacity(void **state)
{
    static const struct {
        int64_t tokens, top_k, experts;
        double factor;
        int64_t megatron, deepspeed, tutel, tutel8;
    } cases[] = {
        {100, 2, 8, 1.25, 32, 32, 32, 32}, {4096, 16, 896, 1.0, 74, 74, 80, 80}, {7, 1, 4, 1.0, 2, 4, 2, 8},
        {1, 2, 8, 1.0, 1, 4, 2, 8},        {64, 8, 64, 0.5, 4, 4, 0, 0},         {0, 2, 4, 1.0, 0, 4, 0, 0},
        {10, 2, 2, 4.0, 40, 40, 40, 40},
    };
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        MoeShape shape = {cases[i].tokens, cases[i].top_k, cases[i].experts};
        double f = cases[i].factor;
        check_int(moe_capacity(MOE_CAPACITY_MEGATRON, &shape, f, 0), cases[i].megatron);
        check_int(moe_capacity(MOE_CAPACITY_DEEPSPEED, &shape, f, 4), cases[i].deepspeed);
        check_int(moe_capacity(MOE_CAPACITY_TUTEL, &shape, f, 1), cases[i].tutel);
        check_int(moe_capacity(MOE_CAPACITY_TUTEL, &shape, f, 8), cases[i].tutel8);
    }
}

static void test_names(void **state)
{
    MoeDrop drop = MOE_DROP_POSITION;
    (void)state;
    for (int i = 0; i < N_MOE_DROPS; i++) {
        assert_true(moe_drop_from_name(moe_drop_name((MoeDrop)i), &drop));
        check_int(drop, i);
    }
    assert_false(moe_drop_from_name("nearest", &drop));
}

/* Three tokens, two choices, room for two: who stays depends on the rule. */
static void test_keep(void **state)
{
    static const int64_t sel[] = {0, 1, 1, 0, 0, 1};
    static const double weights[] = {0.2, 0.5, 0.9, 0.2, 0.8, 0.5};
    static const guint8 want[N_MOE_DROPS][6] = {
        [MOE_DROP_POSITION] = {1, 1, 1, 1, 0, 0},        /* tokens 0 and 1 fill both experts */
        [MOE_DROP_POSITION_CHOICE] = {1, 1, 1, 0, 1, 0}, /* first choices of 0 and 2 fill expert 0 */
        [MOE_DROP_PROBS] = {1, 1, 1, 0, 1, 0},           /* equal weights: the lower token stays */
    };
    const MoeShape shape = {3, 2, 2};
    (void)state;
    for (int drop = 0; drop < N_MOE_DROPS; drop++) {
        guint8 keep[6];
        moe_keep((MoeDrop)drop, &shape, 2, sel, weights, keep);
        assert_memory_equal(keep, want[drop], sizeof keep);
    }
    guint8 all[6];
    moe_keep(MOE_DROP_POSITION, &shape, 7, sel, NULL, all); /* above the number of tokens: nothing is dropped */
    for (int i = 0; i < 6; i++) {
        check_int(all[i], 1);
    }
}

static void test_order(void **state)
{
    static const int64_t sel[] = {2, 0, 0, 1, 2, 0};
    static const guint8 keep[] = {1, 1, 0, 1, 1, 1};
    static const int64_t want_all[] = {1, 2, 5, 3, 0, 4};
    static const int64_t want_kept[] = {1, 5, 3, 0, 4, -1};
    int64_t order[6];
    int64_t counts[4];
    (void)state;
    check_int(moe_order(&(MoeShape){3, 2, 4}, sel, NULL, order, counts), 6);
    assert_memory_equal(order, want_all, sizeof order);
    check_int(counts[0], 3);
    check_int(counts[3], 0);
    check_int(moe_order(&(MoeShape){3, 2, 4}, sel, keep, order, counts), 5);
    assert_memory_equal(order, want_kept, sizeof order);
    check_int(moe_order(&(MoeShape){0, 2, 4}, sel, NULL, order, counts), 0);
    check_int(counts[2], 0);
}

static void test_arrival(void **state)
{
    static const int64_t counts[] = {1, 2, 0, 1, 2, 0}; /* three sources, two local experts */
    static const int64_t want[] = {0, 4, 5, 1, 2, 3};
    int64_t arrival[6];
    int64_t rows[2];
    (void)state;
    check_int(moe_arrival(counts, 3, 2, arrival, rows), 6);
    assert_memory_equal(arrival, want, sizeof arrival);
    check_int(rows[0], 3);
    check_int(rows[1], 3);
    check_int(moe_arrival(counts, 3, 2, NULL, NULL), 6);
    check_int(moe_send_rows(counts, 6, 3, 2), 2);
}

static void test_ranks(void **state)
{
    static const int64_t sel[] = {0, 3, 1, 7};
    (void)state;
    check_int(moe_distinct_ranks(sel, 4, 8, 4), 3);
    check_int(moe_distinct_ranks(sel, 4, 8, 1), 1);
    check_close(moe_expected_ranks(896, 16, 64), 14.361909993975331, 1e-12);
    check_close(moe_expected_ranks(256, 8, 8), 5.294652000382479, 1e-12);
    check_close(moe_expected_ranks(8, 2, 8), 2, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capacity), cmocka_unit_test(test_names),   cmocka_unit_test(test_keep),
        cmocka_unit_test(test_order),    cmocka_unit_test(test_arrival), cmocka_unit_test(test_ranks),
    };
    return cmocka_run_group_tests_name("moe-tables", tests, NULL, NULL);
}
