/*
 * Search space: the points of a sweep as nodes and leaves, and which fields have a say in what a bound speaks of.
 *
 * A node is a combination of the axes that turn more than the loss, its leaves are those of the loss. Less and less of a plan
 * depends on fewer and fewer fields, so nodes that differ in the other fields alone share the bound of it: they are of one
 * class. Which fields have no say in an aspect is a table here, and a property test holds each of its entries.
 */
#pragma once

#include "workloads/plan/plan.h"
#include "workloads/sweep/sweep.h"

typedef enum SearchAspect {
    ASPECT_STATIC,    /* Bound.static_bytes */
    ASPECT_ONCE,      /* Bound.once_ns */
    ASPECT_OPERATORS, /* Bound.operators_ns and operators_bytes */
    ASPECT_LAYERS,    /* Bound.layers_ns, and layers_bytes without the static ones */
    N_SEARCH_ASPECTS
} SearchAspect;

/* Whether a field of plans has no say in an aspect. */
gboolean search_is_free(SearchAspect aspect, const char *path);

/*
 * Whether that holds for the plan. Which rank is the hottest depends on what is recomputed, so drawn loads have nothing that
 * is run once whatever that is; and with a cache the whole plan says what its layers keep.
 */
gboolean search_has_aspect(SearchAspect aspect, const Plan *plan);

/* A group of axes as one number: the points of its combinations. */
typedef struct SearchAxes {
    int64_t *strides;  /* [axis of the group]: between neighbouring values, in points; the last axis runs fastest */
    int64_t *n_values; /* likewise */
    guint n;
    int64_t n_combinations;
} SearchAxes;

typedef struct SearchSpace {
    SearchAxes nodes, leaves;
    int64_t *class_strides[N_SEARCH_ASPECTS]; /* [axis of the nodes]: between neighbouring values, in classes; 0 = it is free */
    int64_t n_classes[N_SEARCH_ASPECTS];
} SearchSpace;

void search_space_init(SearchSpace *space, const Sweep *sweep);
void search_space_clear(SearchSpace *space);

/* Point of a leaf of a node. */
int64_t search_space_point(const SearchSpace *space, int64_t node, int64_t leaf);

/* Class of a node in an aspect: 0 … n_classes − 1. */
int64_t search_space_class(const SearchSpace *space, SearchAspect aspect, int64_t node);
