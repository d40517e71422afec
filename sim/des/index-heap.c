#include "sim/des/index-heap.h"

static gboolean less(const IndexHeapEntry *a, const IndexHeapEntry *b)
{
    return a->key < b->key || (!(b->key < a->key) && a->item < b->item);
}

void index_heap_clear(IndexHeap *heap)
{
    g_free(heap->entries);
    *heap = (IndexHeap){0};
}

/* Puts an entry at `place` or above. */
static void sift_up(IndexHeap *heap, guint32 *places, guint32 place, IndexHeapEntry entry)
{
    while (place > 0) {
        guint32 parent = (place - 1) / 2;
        if (!less(&entry, &heap->entries[parent])) {
            break;
        }
        heap->entries[place] = heap->entries[parent];
        places[heap->entries[place].item] = place;
        place = parent;
    }
    heap->entries[place] = entry;
    places[entry.item] = place;
}

/* Puts an entry at `place` or below. */
static void sift_down(IndexHeap *heap, guint32 *places, guint32 place, IndexHeapEntry entry)
{
    for (;;) {
        guint32 child = 2 * place + 1;
        if (child >= heap->n) {
            break;
        }
        if (child + 1 < heap->n && less(&heap->entries[child + 1], &heap->entries[child])) {
            child++;
        }
        if (!less(&heap->entries[child], &entry)) {
            break;
        }
        heap->entries[place] = heap->entries[child];
        places[heap->entries[place].item] = place;
        place = child;
    }
    heap->entries[place] = entry;
    places[entry.item] = place;
}

void index_heap_add(IndexHeap *heap, guint32 *places, double key, guint32 item)
{
    if (heap->n == heap->capacity) {
        heap->capacity = MAX(8, 2 * heap->capacity);
        heap->entries = g_renew(IndexHeapEntry, heap->entries, heap->capacity);
    }
    heap->n++;
    sift_up(heap, places, heap->n - 1, (IndexHeapEntry){key, item});
}

void index_heap_remove(IndexHeap *heap, guint32 *places, guint32 place)
{
    g_assert(place < heap->n);
    IndexHeapEntry last = heap->entries[--heap->n];
    if (place == heap->n) {
        return;
    }
    if (less(&last, &heap->entries[place])) {
        sift_up(heap, places, place, last);
    } else {
        sift_down(heap, places, place, last);
    }
}

void index_heap_move(IndexHeap *heap, guint32 *places, guint32 place, double key)
{
    g_assert(place < heap->n);
    IndexHeapEntry entry = {key, heap->entries[place].item};
    if (less(&entry, &heap->entries[place])) {
        sift_up(heap, places, place, entry);
    } else {
        sift_down(heap, places, place, entry);
    }
}
