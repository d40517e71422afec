#include "tests/check.h"

#include "sim/base/rng.h"
#include "sim/mem/alloc-model.h"

static const int64_t KIB = 1 << 10, MIB = 1 << 20;

/* What one request counts for and takes from an empty device. */
static void test_one(void **state)
{
    (void)state;
    static const struct {
        int64_t bytes, allocated, reserved;
    } cases[] = {
        {1, 512, 2 << 20},
        {512, 512, 2 << 20},
        {513, 1024, 2 << 20},
        {1 << 20, 1 << 20, 2 << 20},
        {(1 << 20) + 1, (1 << 20) + 512, 20 << 20},
        {(10 << 20) - 512, (10 << 20) - 512, 20 << 20},
        {10 << 20, 10 << 20, 10 << 20},
        {(10 << 20) + 1, (10 << 20) + 512, 12 << 20}, /* the rest is above 1 MiB */
        {11 << 20, 12 << 20, 12 << 20},               /* the rest is 1 MiB: not split, and counted */
        {(11 << 20) + 1, 12 << 20, 12 << 20},
        {1000000000, 1000341504, 1000341504},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(AllocModel) model = alloc_model_new(1, 0);
        AllocBlock block = alloc_model_take(model, 0, cases[i].bytes);
        check_int(alloc_model_block_bytes(model, block), cases[i].allocated);
        check_int(alloc_model_stats(model)->allocated_bytes, cases[i].allocated);
        check_int(alloc_model_stats(model)->reserved_bytes, cases[i].reserved);
        check_int(alloc_model_stats(model)->requested_bytes, cases[i].bytes);
        assert_null(alloc_model_find_fault(model));
        alloc_model_give(model, block);
        check_int(alloc_model_stats(model)->allocated_bytes, 0);
        check_int(alloc_model_stats(model)->reserved_bytes, cases[i].reserved);
        alloc_model_release_cached(model);
        check_int(alloc_model_stats(model)->reserved_bytes, 0);
        assert_null(alloc_model_find_fault(model));
    }
}

static void test_nothing(void **state)
{
    (void)state;
    g_autoptr(AllocModel) model = alloc_model_new(1, 0);
    check_int(alloc_model_take(model, 0, 0), ALLOC_NOTHING);
    check_int(alloc_model_block_bytes(model, ALLOC_NOTHING), 0);
    alloc_model_give(model, ALLOC_NOTHING);
    check_int(alloc_model_stats(model)->reserved_bytes, 0);
}

static void test_best_fit(void **state)
{
    (void)state;
    g_autoptr(AllocModel) model = alloc_model_new(2, 0);
    AllocBlock blocks[5]; /* 4, 6, 4, 3 MiB and what is left of 20 MiB */
    static const int64_t sizes[] = {4, 6, 4, 3};
    for (int i = 0; i < 4; i++) {
        blocks[i] = alloc_model_take(model, 0, sizes[i] * MIB);
    }
    check_int(alloc_model_stats(model)->n_segments, 1);
    alloc_model_give(model, blocks[1]);
    alloc_model_give(model, blocks[3]); /* joins the 3 MiB behind it */
    assert_null(alloc_model_find_fault(model));
    check_int(alloc_model_take(model, 0, 11 * MIB / 2), blocks[1]); /* either would do: the first address */
    check_int(alloc_model_stats(model)->n_segments, 1);
    AllocBlock other = alloc_model_take(model, 1, 2 * MIB); /* another stream takes its own segment */
    check_int(alloc_model_stats(model)->n_segments, 2);
    AllocBlock small = alloc_model_take(model, 0, 4 * KIB); /* so does the other pool */
    check_int(alloc_model_stats(model)->n_segments, 3);
    check_int(alloc_model_stats(model)->reserved_bytes, 42 * MIB);
    check_int(alloc_model_stats(model)->n_blocks, 5);
    alloc_model_give(model, other);
    alloc_model_give(model, small);
    assert_null(alloc_model_find_fault(model));
}

static void test_full(void **state)
{
    (void)state;
    g_autoptr(AllocModel) model = alloc_model_new(1, 100 * MIB);
    AllocBlock a = alloc_model_take(model, 0, 60 * MIB);
    AllocBlock b = alloc_model_take(model, 0, 30 * MIB);
    check_int(alloc_model_take(model, 0, 20 * MIB), ALLOC_FAILED);
    check_int(alloc_model_stats(model)->n_retries, 1);
    alloc_model_give(model, a);
    AllocBlock c = alloc_model_take(model, 0, 40 * MIB); /* from the 60 that are cached */
    check_int(alloc_model_stats(model)->reserved_bytes, 90 * MIB);
    alloc_model_give(model, c);
    AllocBlock d = alloc_model_take(model, 0, 70 * MIB); /* only after these are released */
    assert_true(d > 0);
    check_int(alloc_model_stats(model)->reserved_bytes, 100 * MIB);
    check_int(alloc_model_stats(model)->reserved_bytes_max, 100 * MIB);
    check_int(alloc_model_stats(model)->n_retries, 2);
    alloc_model_give(model, b);
    alloc_model_reset_peaks(model);
    check_int(alloc_model_stats(model)->allocated_bytes_max, 70 * MIB);
    assert_null(alloc_model_find_fault(model));
}

/* Sizes as in training: mostly small, some of hundreds of MiB. */
static int64_t draw_bytes(uint64_t i)
{
    int64_t order = (int64_t)1 << rng_below(3, RNG_TEST, i, 28);
    return order + (int64_t)rng_below(4, RNG_TEST, i, (uint64_t)order);
}

/* Random takes and gives: the invariants hold, requests are held, and at the end nothing is left. */
static void test_random(void **state)
{
    (void)state;
    enum { N_LIVE = 200, N_ROUNDS = 20000 };
    static const int64_t capacities[] = {0, (int64_t)4 << 30};
    for (size_t k = 0; k < G_N_ELEMENTS(capacities); k++) {
        g_autoptr(AllocModel) model = alloc_model_new(3, capacities[k]);
        AllocBlock live[N_LIVE] = {0};
        int64_t sizes[N_LIVE] = {0}, requested = 0;
        for (uint64_t i = 0; i < N_ROUNDS; i++) {
            size_t at = rng_below(1, RNG_TEST, i, N_LIVE);
            alloc_model_give(model, live[at]);
            requested -= sizes[at];
            sizes[at] = draw_bytes(i);
            live[at] = alloc_model_take(model, (int)rng_below(2, RNG_TEST, i, 3), sizes[at]);
            if (live[at] == ALLOC_FAILED) {
                live[at] = ALLOC_NOTHING;
                sizes[at] = 0;
            }
            requested += sizes[at];
            assert_true(alloc_model_block_bytes(model, live[at]) >= sizes[at]);
            check_int(alloc_model_stats(model)->requested_bytes, requested);
            if (i % 100 == 0) {
                check_string(alloc_model_find_fault(model), NULL);
            }
        }
        for (size_t i = 0; i < N_LIVE; i++) {
            alloc_model_give(model, live[i]);
        }
        alloc_model_release_cached(model);
        check_int(alloc_model_stats(model)->allocated_bytes, 0);
        check_int(alloc_model_stats(model)->reserved_bytes, 0);
        check_int(alloc_model_stats(model)->n_segments, 0);
        assert_null(alloc_model_find_fault(model));
    }
}

/* One growing segment per stream and pool: exact blocks, invariants under random use, and never more reserved than needed by then. */
static void test_expandable(void **state)
{
    (void)state;
    enum { N_LIVE = 100, N_ROUNDS = 20000 };
    g_autoptr(AllocModel) model = alloc_model_new(3, 0);
    AllocBlock live[N_LIVE] = {0};
    alloc_model_make_expandable(model);
    live[0] = alloc_model_take(model, 0, 11 * MIB);
    check_int(alloc_model_block_bytes(model, live[0]), 11 * MIB); /* the rest is split off, even 1 MiB */
    check_int(alloc_model_stats(model)->reserved_bytes, 20 * MIB);
    live[1] = alloc_model_take(model, 0, 25 * MIB); /* 9 MiB are free at the end: 16 more are needed, a page is 20 */
    check_int(alloc_model_stats(model)->reserved_bytes, 40 * MIB);
    for (uint64_t i = 0; i < N_ROUNDS; i++) {
        size_t at = rng_below(1, RNG_TEST, i, N_LIVE);
        int64_t bytes = draw_bytes(i), before;
        alloc_model_give(model, live[at]);
        before = alloc_model_stats(model)->reserved_bytes;
        live[at] = alloc_model_take(model, (int)rng_below(2, RNG_TEST, i, 3), bytes);
        check_int(alloc_model_block_bytes(model, live[at]), bytes > 0 ? alloc_model_round(bytes) : 0);
        assert_true(alloc_model_stats(model)->reserved_bytes < before + bytes + 20 * MIB);
        assert_true(alloc_model_stats(model)->n_segments <= 6);
        if (i % 100 == 0) {
            check_string(alloc_model_find_fault(model), NULL);
        }
    }
    for (size_t i = 0; i < N_LIVE; i++) {
        alloc_model_give(model, live[i]);
    }
    check_int(alloc_model_stats(model)->allocated_bytes, 0);
    assert_null(alloc_model_find_fault(model));
}

/* What is cached, what of it cannot go back, and the largest block. */
static void check_free(const AllocModel *model, int64_t bytes, int64_t bound_bytes, int64_t largest_bytes)
{
    AllocFree space;
    alloc_model_free_space(model, &space);
    check_int(space.bytes, bytes);
    check_int(space.bytes, alloc_model_stats(model)->reserved_bytes - alloc_model_stats(model)->allocated_bytes);
    check_int(space.bound_bytes, bound_bytes);
    check_int(space.largest_bytes, largest_bytes);
}

static void test_free_space(void **state)
{
    (void)state;
    g_autoptr(AllocModel) model = alloc_model_new(2, 0);
    check_free(model, 0, 0, 0);
    AllocBlock whole = alloc_model_take(model, 0, 40 * MIB), part = alloc_model_take(model, 0, 4 * MIB), small = alloc_model_take(model, 1, KIB);
    check_free(model, 18 * MIB - KIB, 18 * MIB - KIB, 16 * MIB); /* of 20 MiB, and of 2 */
    alloc_model_give(model, whole);
    check_free(model, 58 * MIB - KIB, 18 * MIB - KIB, 40 * MIB); /* a segment that is wholly free can go back */
    alloc_model_give(model, part);
    check_free(model, 62 * MIB - KIB, 2 * MIB - KIB, 40 * MIB);
    alloc_model_give(model, small);
    check_free(model, 62 * MIB, 0, 40 * MIB);
    alloc_model_release_cached(model);
    check_free(model, 0, 0, 0);
}

/* Of expandable segments what shares a page with a block in use is bound: up to a page on either side of a free block. */
static void test_free_pages(void **state)
{
    (void)state;
    g_autoptr(AllocModel) model = alloc_model_new(1, 0);
    AllocBlock blocks[3];
    alloc_model_make_expandable(model);
    for (int i = 0; i < 3; i++) {
        blocks[i] = alloc_model_take(model, 0, 50 * MIB); /* pages end at 20, 40, ... 160 MiB */
    }
    check_free(model, 10 * MIB, 10 * MIB, 10 * MIB);
    alloc_model_give(model, blocks[1]); /* 50 to 100: 60 to 100 are whole pages */
    check_free(model, 60 * MIB, 20 * MIB, 50 * MIB);
    alloc_model_give(model, blocks[0]); /* 0 to 100 */
    check_free(model, 110 * MIB, 10 * MIB, 100 * MIB);
    alloc_model_give(model, blocks[2]);
    check_free(model, 160 * MIB, 0, 160 * MIB);
}

/* A bound that is set later is that of a model made with it. */
static void test_bound(void **state)
{
    (void)state;
    g_autoptr(AllocModel) model = alloc_model_new(1, 0);
    alloc_model_take(model, 0, 100 * MIB);
    alloc_model_reset(model);
    alloc_model_bound(model, 30 * MIB);
    AllocBlock first = alloc_model_take(model, 0, 12 * MIB), second = alloc_model_take(model, 0, 12 * MIB);
    assert_true(first > 0 && second > 0);
    check_int(alloc_model_take(model, 0, 12 * MIB), ALLOC_FAILED);
    alloc_model_give(model, first);
    assert_true(alloc_model_take(model, 0, 14 * MIB) > 0); /* the first segment goes back for it */
    check_int(alloc_model_stats(model)->reserved_bytes, 26 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one),  cmocka_unit_test(test_nothing), cmocka_unit_test(test_best_fit),
        cmocka_unit_test(test_full), cmocka_unit_test(test_random), cmocka_unit_test(test_expandable),
        cmocka_unit_test(test_free_space), cmocka_unit_test(test_free_pages), cmocka_unit_test(test_bound),
    };
    return cmocka_run_group_tests_name("alloc-model", tests, NULL, NULL);
}
