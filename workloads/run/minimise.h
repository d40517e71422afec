/*
 * Minimise: the smallest plan that still shows a fault.
 *
 * Greedy and without chance: fields are left out, models and numbers made smaller, one at a time and in the order in which
 * they stand, as long as what is left still fails; until nothing can be taken any more.
 */
#pragma once

#include <jansson.h>

#include <glib.h>

/* Whether a plan object is legal and shows the fault. */
typedef gboolean (*MinimiseFails)(void *self, json_t *plan);

/* A smaller plan that fails, too, after at most max_tries trials; new reference. */
json_t *minimise_plan(json_t *plan, MinimiseFails fails, void *self, int max_tries);
