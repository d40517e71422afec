#include "tests/check.h"

#include "sim/base/rng.h"
#include "sim/mem/block-bins.h"

enum { N = 300 };

/* The least of the blocks on a shelf that is large enough, by looking at all. */
static gint32 search(const BlockBins *bins, const gboolean *is_in, int64_t bytes)
{
    gint32 found = 0;
    for (gint32 i = 1; i <= N; i++) {
        const Block *block = block_bins_get(bins, i);
        if (!is_in[i] || block->bytes < bytes) {
            continue;
        }
        const Block *best = found != 0 ? block_bins_get(bins, found) : NULL;
        if (best == NULL || block->bytes < best->bytes ||
            (block->bytes == best->bytes && block->address < best->address)) {
            found = i;
        }
    }
    return found;
}

static void test_random(void **state)
{
    (void)state;
    BlockBins store, *bins = &store;
    block_bins_init(bins, 2);
    gboolean is_in[N + 1] = {FALSE};
    const int shelf = 1;
    for (uint64_t i = 1; i <= N; i++) {
        Block *block = block_bins_get(bins, block_bins_add(bins));
        block->address = (int64_t)i * 512;
        block->bytes = 512 * (1 + (int64_t)rng_below(1, RNG_TEST, i, 40));
    }
    for (uint64_t i = 0; i < 20000; i++) {
        gint32 idx = 1 + (gint32)rng_below(2, RNG_TEST, i, N);
        check_int(block_bins_holds(bins, shelf, idx), is_in[idx]);
        if (is_in[idx]) {
            block_bins_take(bins, shelf, idx);
        } else {
            block_bins_put(bins, shelf, idx);
        }
        is_in[idx] = !is_in[idx];
        int64_t bytes = (int64_t)rng_below(3, RNG_TEST, i, 512 * 42);
        check_int(block_bins_at_least(bins, shelf, bytes), search(bins, is_in, bytes));
    }
    block_bins_clear(bins);
}

static void test_places(void **state)
{
    (void)state;
    BlockBins store, *bins = &store;
    block_bins_init(bins, 2);
    gint32 a = block_bins_add(bins), b = block_bins_add(bins);
    block_bins_get(bins, a)->bytes = 7;
    block_bins_drop(bins, a);
    check_int(block_bins_add(bins), a);
    check_int(block_bins_get(bins, a)->bytes, 0);
    check_int(b, 2);
    check_int(block_bins_n_places(bins), 2);
    check_int(block_bins_at_least(bins, 0, 1), 0);
    block_bins_clear(bins);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_places)};
    return cmocka_run_group_tests_name("block-bins", tests, NULL, NULL);
}
