/*
 * Index heap: the least of many keys that change.
 *
 * A binary heap of (key, item) whose items know their places, so that any of them can be moved or taken out in
 * O(log n). The places lie in an array of the caller's, by item, which several heaps may share as long as an item is in
 * one of them only. Equal keys: the lower item first, so the order depends on nothing but keys and items.
 *
 * Invariant: places[entries[i].item] == i for every entry.
 */
#pragma once

#include <glib.h>

typedef struct IndexHeapEntry {
    double key;
    guint32 item;
} IndexHeapEntry;

typedef struct IndexHeap {
    IndexHeapEntry *entries; /* [n]; entries[0] is the least */
    guint32 n, capacity;
} IndexHeap;

/* Frees the entries; an all-zero heap is empty. */
void index_heap_clear(IndexHeap *heap);

/* Adds an item that is not in the heap. */
void index_heap_add(IndexHeap *heap, guint32 *places, double key, guint32 item);

/* Takes out the item at a place. */
void index_heap_remove(IndexHeap *heap, guint32 *places, guint32 place);

/* Gives the item at a place another key. */
void index_heap_move(IndexHeap *heap, guint32 *places, guint32 place, double key);
