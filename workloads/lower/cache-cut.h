/*
 * Cut: the best sets of results of one layer to keep, for every price of memory.
 *
 * A backward pass needs tensors. Each is kept, or its operator runs again and then needs the operator's inputs in turn; an
 * operator whose results nobody needs does not run. With seconds t(o) to run an operator again, bytes b(o) of its results, and
 * g for gathering the experts' parameters once more if any operator that reads them runs again, the set for a price p of a byte
 *
 *     minimises  sum of t(o) over what runs again + g if experts run + p x sum of b(o) over what is kept.
 *
 * This is a minimum cut: two nodes an operator, "needed" a and "runs again" r; edges a -> r of capacity p b(o) (needed but not
 * run: kept), r -> sink of t(o), r -> a of its inputs' operators without bound. So the set is exact for each price, and the sets
 * for all prices are the corners of the lower convex hull of seconds over bytes, found by halving the hull at its chords.
 */
#pragma once

#include "models/graph.h"
#include "workloads/lower/retention.h"

/* One layer as the cut sees it, by operator. */
typedef struct CutLayer {
    int n_ops;
    int64_t *bytes;    /* of its results; 0 = cannot be kept */
    double *seconds;   /* to run it again */
    guint8 *needed;    /* its results or auxiliary tensors are kept for backward */
    guint8 *experts;   /* reads parameters of the experts' own group */
    guint8 *inputs;    /* [n_ops * n_ops]: at o * n_ops + p: o reads what p makes */
    double gather_seconds;
} CutLayer;

/* A corner of the hull: what is kept, and what that leaves to be made again. */
typedef struct CutPoint {
    int64_t bytes;
    double seconds;
    guint8 *keep; /* by operator */
} CutPoint;

/* A layer of a graph without bytes and seconds; the caller fills these. Free with cut_layer_free. */
CutLayer *cut_layer_new(const Graph *graph, const RowCounts *rows);
void cut_layer_free(CutLayer *layer);

/* What runs again when `keep` (by operator) is kept; returns the seconds. */
double cut_runs(const CutLayer *layer, const guint8 *keep, guint8 *ret_runs);

/* The best set for a price in seconds per byte. */
void cut_solve(const CutLayer *layer, double price, CutPoint *ret_point);

/* Corners from nothing kept to nothing worth running again: CutPoint, bytes rising; free with g_array_unref. */
GArray *cut_hull(const CutLayer *layer);
