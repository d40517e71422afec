#include "sim/mem/block-tree.h"

struct BlockTree {
    GArray *blocks; /* Block; place 0 is not used */
    gint32 spare;   /* first place given back, linked by left */
};

BlockTree *block_tree_new(void)
{
    BlockTree *tree = g_new0(BlockTree, 1);
    tree->blocks = g_array_new(FALSE, TRUE, sizeof(Block));
    g_array_set_size(tree->blocks, 1);
    return tree;
}

void block_tree_free(BlockTree *tree)
{
    if (tree == NULL) {
        return;
    }
    g_array_unref(tree->blocks);
    g_free(tree);
}

Block *block_tree_get(const BlockTree *tree, gint32 block)
{
    g_assert(block > 0 && (guint)block < tree->blocks->len);
    return &g_array_index(tree->blocks, Block, block);
}

static inline Block *at(const BlockTree *tree, gint32 block)
{
    return &g_array_index(tree->blocks, Block, block);
}

gint32 block_tree_n_places(const BlockTree *tree)
{
    return (gint32)tree->blocks->len - 1;
}

gint32 block_tree_add(BlockTree *tree)
{
    if (tree->spare != 0) {
        gint32 block = tree->spare;
        tree->spare = at(tree, block)->left;
        *at(tree, block) = (Block){0};
        return block;
    }
    g_assert(tree->blocks->len < G_MAXINT32);
    g_array_set_size(tree->blocks, tree->blocks->len + 1);
    return (gint32)tree->blocks->len - 1;
}

void block_tree_drop(BlockTree *tree, gint32 block)
{
    *block_tree_get(tree, block) = (Block){.left = tree->spare};
    tree->spare = block;
}

static inline gboolean is_before(const Block *a, const Block *b)
{
    return a->bytes < b->bytes || (a->bytes == b->bytes && a->address < b->address);
}

static guint32 priority_of(int64_t address)
{
    uint64_t x = (uint64_t)address / 512 * 0x9e3779b97f4a7c15u;
    x ^= x >> 32;
    return (guint32)(x * 0xd6e8feb86659fd93u >> 32);
}

/* Cuts a tree in two: what comes before the block, and what comes after. */
static void cut(BlockTree *tree, gint32 root, const Block *block, gint32 *ret_before, gint32 *ret_after)
{
    while (root != 0) {
        Block *node = at(tree, root);
        if (is_before(node, block)) {
            *ret_before = root;
            ret_before = &node->right;
            root = node->right;
        } else {
            *ret_after = root;
            ret_after = &node->left;
            root = node->left;
        }
    }
    *ret_before = 0;
    *ret_after = 0;
}

void block_tree_insert(BlockTree *tree, gint32 *root, gint32 idx)
{
    Block *block = block_tree_get(tree, idx);
    block->priority = priority_of(block->address);
    while (*root != 0 && at(tree, *root)->priority >= block->priority) {
        Block *node = at(tree, *root);
        root = is_before(node, block) ? &node->right : &node->left;
    }
    cut(tree, *root, block, &block->left, &block->right);
    *root = idx;
}

/* Joins two trees, all of the first before all of the second, at *root. */
static void join(BlockTree *tree, gint32 *root, gint32 before, gint32 after)
{
    while (before != 0 && after != 0) {
        if (at(tree, before)->priority >= at(tree, after)->priority) {
            *root = before;
            root = &at(tree, before)->right;
            before = *root;
        } else {
            *root = after;
            root = &at(tree, after)->left;
            after = *root;
        }
    }
    *root = before != 0 ? before : after;
}

void block_tree_remove(BlockTree *tree, gint32 *root, gint32 idx)
{
    Block *block = block_tree_get(tree, idx);
    while (*root != idx) {
        g_assert(*root != 0);
        Block *node = at(tree, *root);
        root = is_before(node, block) ? &node->right : &node->left;
    }
    join(tree, root, block->left, block->right);
}

gboolean block_tree_holds(const BlockTree *tree, gint32 root, gint32 idx)
{
    const Block *block = block_tree_get(tree, idx);
    while (root != 0 && root != idx) {
        const Block *node = at(tree, root);
        root = is_before(node, block) ? node->right : node->left;
    }
    return root == idx;
}

gint32 block_tree_at_least(const BlockTree *tree, gint32 root, int64_t bytes)
{
    gint32 found = 0;
    while (root != 0) {
        const Block *node = at(tree, root);
        if (node->bytes >= bytes) {
            found = root;
            root = node->left;
        } else {
            root = node->right;
        }
    }
    return found;
}
