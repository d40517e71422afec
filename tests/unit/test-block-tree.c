#include "tests/check.h"

#include "sim/base/rng.h"
#include "sim/mem/block-tree.h"

enum { N = 300 };

/* The least of the blocks in a tree that is large enough, by looking at all. */
static gint32 search(const BlockTree *tree, const gboolean *is_in, int64_t bytes)
{
    gint32 found = 0;
    for (gint32 i = 1; i <= N; i++) {
        const Block *block = block_tree_get(tree, i);
        if (!is_in[i] || block->bytes < bytes) {
            continue;
        }
        const Block *best = found != 0 ? block_tree_get(tree, found) : NULL;
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
    BlockTree *tree = block_tree_new();
    gboolean is_in[N + 1] = {FALSE};
    gint32 root = 0;
    for (uint64_t i = 1; i <= N; i++) {
        Block *block = block_tree_get(tree, block_tree_add(tree));
        block->address = (int64_t)i * 512;
        block->bytes = 512 * (1 + (int64_t)rng_below(1, RNG_TEST, i, 40));
    }
    for (uint64_t i = 0; i < 20000; i++) {
        gint32 idx = 1 + (gint32)rng_below(2, RNG_TEST, i, N);
        check_int(block_tree_holds(tree, root, idx), is_in[idx]);
        if (is_in[idx]) {
            block_tree_remove(tree, &root, idx);
        } else {
            block_tree_insert(tree, &root, idx);
        }
        is_in[idx] = !is_in[idx];
        int64_t bytes = (int64_t)rng_below(3, RNG_TEST, i, 512 * 42);
        check_int(block_tree_at_least(tree, root, bytes), search(tree, is_in, bytes));
    }
    block_tree_free(tree);
}

static void test_places(void **state)
{
    (void)state;
    BlockTree *tree = block_tree_new();
    gint32 a = block_tree_add(tree), b = block_tree_add(tree);
    block_tree_get(tree, a)->bytes = 7;
    block_tree_drop(tree, a);
    check_int(block_tree_add(tree), a);
    check_int(block_tree_get(tree, a)->bytes, 0);
    check_int(b, 2);
    check_int(block_tree_n_places(tree), 2);
    check_int(block_tree_at_least(tree, 0, 1), 0);
    block_tree_free(tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_places)};
    return cmocka_run_group_tests_name("block-tree", tests, NULL, NULL);
}
