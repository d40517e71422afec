/*
 * Block tree: the blocks of an allocator, and its free ones ordered by size, then address.
 *
 * Blocks lie in one array and are named by their place in it, from 1; 0 is none. Several trees live in the
 * same array. A tree is a treap: in order by (bytes, address), and a heap by a priority that is a hash of the
 * block's address, so its shape depends on its content alone and its depth is logarithmic on average.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef struct Block {
    int64_t address;
    int64_t bytes; /* 0: the place is not taken */
    int64_t requested_bytes;
    gint32 before, after; /* neighbours in the segment */
    gint32 left, right;   /* in a tree */
    guint32 priority;
    gint16 stream;
    guint8 pool;
    guint8 is_used;
} Block;

typedef struct BlockTree BlockTree;

BlockTree *block_tree_new(void);
void block_tree_free(BlockTree *tree);

/* A new block, all zero. Pointers to blocks hold until the next call of this. */
gint32 block_tree_add(BlockTree *tree);

/* Gives a block's place back; it must be in no tree. */
void block_tree_drop(BlockTree *tree, gint32 block);
Block *block_tree_get(const BlockTree *tree, gint32 block);

/* Places ever taken. */
gint32 block_tree_n_places(const BlockTree *tree);

/* Puts a block in a tree, takes it out, asks for it. Its size and address may not change while it is in. */
void block_tree_insert(BlockTree *tree, gint32 *root, gint32 block);
void block_tree_remove(BlockTree *tree, gint32 *root, gint32 block);
gboolean block_tree_holds(const BlockTree *tree, gint32 root, gint32 block);

/* The least block of at least that many bytes, or 0. */
gint32 block_tree_at_least(const BlockTree *tree, gint32 root, int64_t bytes);
