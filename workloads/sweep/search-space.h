/*
 * Space of a search: the points of a sweep as a tree. A node fixes the values of some axes, its children those of some more.
 *
 * Few fields have a say in what a bound rests on. So axes are fixed in an order in which a bound always holds for all that a
 * node leaves open:
 *     ONCE       axes that say what operators are and how tokens travel: operators run once take that at least
 *     SHARDED    and how layers are sharded, gathered and reduced
 *     LAYERS     and what is kept, recomputed, offloaded
 *     LAYOUT     and everything else but the cuts of the loss: the optimizer
 *     leaves     cuts of the loss: points
 * Fields that are not known to have no say have one (search_is_free), so a field that plans get later does.
 *
 * What a rank holds between steps depends on other fields, those of STATIC: a class of points is a combination of theirs. A
 * node holds at least the least of the classes that it leaves open.
 */
#pragma once

#include "workloads/plan/plan.h"
#include "workloads/sweep/sweep.h"

typedef enum SearchAspect {
    ASPECT_ONCE,    /* once_ns of session_bound_shared() */
    ASPECT_SHARDED, /* sharded_ns of it */
    ASPECT_LAYERS,  /* layers_ns of session_bound_layers(), and layers_bytes without the static ones */
    ASPECT_LAYOUT,  /* nothing more than its parents and what lives between steps */
    N_SEARCH_LEVELS,
    ASPECT_STATIC = N_SEARCH_LEVELS, /* session_static_bytes() */
    N_SEARCH_ASPECTS
} SearchAspect;

/* Whether a field of plans has no say in an aspect. */
gboolean search_is_free(SearchAspect aspect, const char *path);

/*
 * Whether bounds of the aspect hold for the plan: with a cache the whole plan says what its layers keep; who holds which states
 * of whole tensors that are dealt out depends on the groups, which a cut of the loss changes.
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
    SearchAxes fixed[N_SEARCH_LEVELS]; /* axes that nodes of a level fix */
    SearchAxes open[N_SEARCH_LEVELS];  /* those that they leave open */
    SearchAxes children[N_SEARCH_LEVELS]; /* those that their children fix, too; of the last level: the leaves */
    SearchAxes statics, others;        /* axes with a say in what is held between steps, and those without */
    SearchAxes fixed_statics[N_SEARCH_LEVELS]; /* of the former those that nodes of a level fix */
} SearchSpace;

void search_space_init(SearchSpace *space, const Sweep *sweep);
void search_space_clear(SearchSpace *space);

/* A node is known by its level and its least point. The number-th of a level, its children, and its points. */
int64_t search_space_node(const SearchSpace *space, SearchAspect level, int64_t number);
int64_t search_space_child(const SearchSpace *space, SearchAspect level, int64_t node, int64_t child);
int64_t search_space_point(const SearchSpace *space, SearchAspect level, int64_t node, int64_t member);

/* Layouts below a node of a level. */
int64_t search_space_n_layouts(const SearchSpace *space, SearchAspect level);

/* A point of a class of STATIC; the class of the fields of it that nodes of a level fix, by any of a node's points. */
int64_t search_space_static_point(const SearchSpace *space, int64_t class, int64_t member);
int64_t search_space_static_class(const SearchSpace *space, SearchAspect level, int64_t point);
