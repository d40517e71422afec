/*
 * Search: the best points of a sweep without evaluating all of it, and the proof that none is better.
 *
 * Branch and bound. Axes that cut the loss change nothing in the layers of a model: a node is a combination of the other axes,
 * its leaves are the combinations of those. All nodes are bounded roughly, by what they share with most others (static
 * memory, operators run once: search-space.h), which takes a lowering for each class and a look-up for each node. The best
 * bound is then looked at more closely, by operators with what is recomputed, then by layers, again class by class, and comes
 * back into the queue; a node whose layers are bounded has its plans run, first their step and what they hold if that step is
 * among the best. When the best bound left is worse than the worst of the best points found, nothing left holds one of them.
 *
 * The points found are those that evaluating everything finds, ties going to the lower point; they do not depend on the
 * number of threads, though how many points were evaluated on the way may.
 */
#pragma once

#include "workloads/sweep/evaluate.h"

typedef struct SearchBest {
    int64_t point;
    double objective;
} SearchBest;

typedef struct SearchResult {
    GArray *best;                       /* SearchBest, the best first; at most as many as were asked for */
    int64_t n_nodes;                    /* of the tree below its root */
    int64_t n_bounded;                  /* nodes with a valid plan */
    int64_t n_without_room;             /* nodes none of whose plans can fit */
    int64_t n_pruned;                   /* nodes whose bound rules them out */
    int64_t n_evaluated;                /* points */
    double unvisited;                   /* stopped: objective that no point of the nodes left goes beyond; NAN when unknown, or none is left */
    gboolean is_proven;                 /* FALSE: it was stopped before its end */
} SearchResult;

void search_result_clear(SearchResult *result);

typedef struct SearchOptions {
    int n_threads;
    int64_t n_best; /* how many points are wanted, at least 1 */
    /* Asked now and then, with what has been done of what is to do; TRUE stops the search. */
    gboolean (*stop)(const char *what, int64_t n_done, int64_t n_all, void *data);
    void *data;
} SearchOptions;

/* Searches by the sweep's objective. Errors: an objective without a bound, or a tree that is too wide. */
gboolean search_run(const Sweep *sweep, const SearchOptions *options, SearchResult *ret_result, GError **error);
