/*
 * Search: the best points of a sweep without evaluating all of it, and the proof that none is better.
 *
 * Branch and bound over the tree of search-space.h. What lives between steps is computed first, for each class of points. Then
 * the open node with the best bound is taken, again and again. One that has its parent's bound gets its own, by lowering one of
 * its plans, and comes back; one that has it gives way to its children; a layout has its plans run, first their step and what
 * they hold if that step is among the best. So what is lowered are nodes whose parent could hold one of the best, and no more.
 * When the best bound left is worse than the worst of the best points found, nothing left holds one of them.
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
    GArray *best;           /* SearchBest, the best first; at most as many as were asked for */
    int64_t n_layouts;      /* combinations without those of the loss */
    int64_t n_invalid;      /* known to have no valid plan */
    int64_t n_without_room; /* ruled out since none of their plans can fit */
    int64_t n_pruned;       /* ruled out by their bounds */
    int64_t n_bounds;       /* lowerings for bounds */
    int64_t n_evaluated;    /* points */
    double unvisited;       /* stopped: objective that no point of the nodes left goes beyond; NAN when unknown, or none is left */
    gboolean is_proven;     /* FALSE: it was stopped before its end */
} SearchResult;

void search_result_clear(SearchResult *result);

/* How far a search is. */
typedef struct SearchProgress {
    gboolean is_started;         /* FALSE: still looking at what lives between steps */
    int64_t n_layouts, n_open;   /* all, and those that may still hold one of the best */
    int64_t n_bounds, n_evaluated;
    double best, bound;          /* objective found, and that no point left goes beyond; NAN when unknown */
} SearchProgress;

typedef struct SearchOptions {
    int n_threads;
    int64_t n_best; /* how many points are wanted, at least 1 */
    /* Asked now and then; TRUE stops the search. */
    gboolean (*stop)(const SearchProgress *progress, void *data);
    void *data;
} SearchOptions;

/* Searches by the sweep's objective. Errors: an objective without a bound, or a tree that is too wide. */
gboolean search_run(const Sweep *sweep, const SearchOptions *options, SearchResult *ret_result, GError **error);
