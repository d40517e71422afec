/*
 * Shrink: a plan small enough to run in values, with the same layout, layer kinds and options.
 */
#pragma once

#include "workloads/plan/plan.h"

enum { SHRINK_RANKS_MAX = 64 };

/*
 * Reduces a plan in place: widths, vocabulary, tokens, experts, layers (each kind stays), micro-batches (three at most), ranks
 * (expert parallelism, sharding and replicas stay where they were). Returns what was done in a line; caller frees.
 */
char *shrink_plan(Plan *plan);
