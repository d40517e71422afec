/*
 * Queue of a search: open nodes of its tree (search-space.h), the best bound first.
 *
 * Equal bounds: nodes further down first, which come to points sooner; then the lower point, so that neighbours in the space
 * follow one another and share what a session remembers.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef struct SearchNode {
    double bound;   /* of the objective, lower is better; −∞ when unknown */
    int64_t point;  /* its least */
    guint8 level;   /* SearchAspect */
    gboolean is_bounded; /* by what its own level says; else the bound is its parent's */
} SearchNode;

typedef struct SearchQueue {
    GArray *nodes; /* SearchNode: a binary heap, the best first */
} SearchQueue;

void search_queue_init(SearchQueue *queue);
void search_queue_clear(SearchQueue *queue);

void search_queue_put(SearchQueue *queue, const SearchNode *node);

/* The best node, NULL when there is none; borrowed until the next call. */
const SearchNode *search_queue_first(const SearchQueue *queue);
SearchNode search_queue_take(SearchQueue *queue);
