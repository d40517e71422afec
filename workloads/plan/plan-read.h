/*
 * What the readers of a plan's parts share.
 */
#pragma once

#include "sim/base/json-read.h"
#include "workloads/plan/plan.h"

/* No plan needs more of anything that is counted; keeps products inside int64. */
enum { PLAN_COUNT_MAX = 1 << 24 };

/* A path of the plan, relative to the plan's own folder (NULL: to the current one); caller frees. */
char *plan_read_path(const char *base_dir, const char *path);

/* Fields whose feature is not modelled yet: refused unless they have their neutral value (choices: the first). */
void plan_refuse_number(JsonObject *object, const char *key, double neutral);
void plan_refuse_choice(JsonObject *object, const char *key, const char *const *names, int n_names);

/* Reads a list of names, or one name, into flags; without the key these stay. A name that is none, or there twice, is refused. */
void plan_read_flags(JsonObject *object, const char *key, const char *const *names, int n_names, gboolean *ret_flags);

/* Whether a field says "fit" and no number. Another word is a mistake; what: what would be right. */
gboolean plan_says_fit(JsonObject *object, const char *key, const char *what);

/* Reads "memory". */
void plan_read_memory(Plan *plan, JsonObject *root);
