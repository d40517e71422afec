/*
 * What the names in a sweep's expressions mean: fields of the plan by their dotted path, and facts.
 *
 * A field has the value that the point sets, else that of the base, else its default if that is fixed; sizes with a unit
 * are bytes; parallel.dp_shard is the degree that fills the cluster where it is −1. Facts are about the model and the
 * machine: see sweep-facts.def.
 */
#pragma once

#include "workloads/run/session.h"
#include "workloads/sweep/sweep.h"

/* Belongs to one thread; remembers facts of models and clusters. */
typedef struct SweepNames SweepNames;

SweepNames *sweep_names_new(const Sweep *sweep, Session *session);
void sweep_names_free(SweepNames *names);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SweepNames, sweep_names_free)

/* An expression's value for a plan object. Errors name the column in the expression. */
gboolean sweep_names_evaluate(SweepNames *names, const Expression *expression, json_t *plan, ExpressionValue *ret_value,
                              GError **error);

/*
 * Whether all constraints hold for a plan object. An error when one has no truth value there (no place; names the
 * constraint): then the model or the cluster cannot be loaded, or a field has no value.
 */
gboolean sweep_names_allow(SweepNames *names, json_t *plan, gboolean *ret_allowed, GError **error);

/* Checks every name of an expression: a plan path within the schema or a fact. */
gboolean sweep_names_check(const Expression *expression, json_t *plan_schema, GError **error);

/* Whether a dotted path is a field of plans. The error has the nearest name. */
gboolean sweep_check_field(const char *path, json_t *plan_schema, GError **error);
