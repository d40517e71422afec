/*
 * VALUES of a sweep file as a list: ranges written out, ends of ranges computed.
 */
#pragma once

#include "workloads/sweep/sweep-names.h"

/* A list or a range as an array; new reference. Errors have no place. */
json_t *sweep_values_expand(json_t *values, SweepNames *names, json_t *base, GError **error);
