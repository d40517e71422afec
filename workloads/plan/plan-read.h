/*
 * What the readers of a plan's parts share.
 */
#pragma once

#include "sim/base/json-read.h"

/* A path of the plan, relative to the plan's own folder (NULL: to the current one); caller frees. */
char *plan_read_path(const char *base_dir, const char *path);

/* Fields whose feature is not modelled yet: refused unless they have their neutral value (choices: the first). */
void plan_refuse_number(JsonObject *object, const char *key, double neutral);
void plan_refuse_choice(JsonObject *object, const char *key, const char *const *names, int n_names);
