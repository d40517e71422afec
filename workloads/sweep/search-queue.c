#include "workloads/sweep/search-queue.h"

void search_queue_init(SearchQueue *queue)
{
    queue->nodes = g_array_new(FALSE, FALSE, sizeof(SearchNode));
}

void search_queue_clear(SearchQueue *queue)
{
    g_clear_pointer(&queue->nodes, g_array_unref);
}

static gboolean comes_before(const SearchNode *a, const SearchNode *b)
{
    if (a->bound < b->bound || a->bound > b->bound) {
        return a->bound < b->bound;
    }
    return a->level != b->level ? a->level > b->level : a->point < b->point;
}

static SearchNode *node_at(const SearchQueue *queue, guint place)
{
    return &g_array_index(queue->nodes, SearchNode, place);
}

void search_queue_put(SearchQueue *queue, const SearchNode *node)
{
    g_array_append_val(queue->nodes, *node);
    guint place = queue->nodes->len - 1;
    for (; place > 0 && comes_before(node, node_at(queue, (place - 1) / 2)); place = (place - 1) / 2) {
        *node_at(queue, place) = *node_at(queue, (place - 1) / 2);
    }
    *node_at(queue, place) = *node;
}

const SearchNode *search_queue_first(const SearchQueue *queue)
{
    return queue->nodes->len > 0 ? node_at(queue, 0) : NULL;
}

SearchNode search_queue_take(SearchQueue *queue)
{
    SearchNode first = *node_at(queue, 0), last = *node_at(queue, queue->nodes->len - 1);
    g_array_set_size(queue->nodes, queue->nodes->len - 1);
    guint n = queue->nodes->len, place = 0;
    while (2 * place + 1 < n) {
        guint child = 2 * place + 1;
        child += child + 1 < n && comes_before(node_at(queue, child + 1), node_at(queue, child)) ? 1 : 0;
        if (!comes_before(node_at(queue, child), &last)) {
            break;
        }
        *node_at(queue, place) = *node_at(queue, child);
        place = child;
    }
    if (n > 0) {
        *node_at(queue, place) = last;
    }
    return first;
}
