/*
 * Shrink: a plan small enough to run in values, with the same layout, layer kinds and options.
 */
#pragma once

#include "workloads/plan/plan.h"

enum { SHRINK_RANKS_MAX = 64 };

/* What became of one size, in the order in which a report names them. */
typedef struct ShrinkNote {
    const char *what; /* "layers" */
    int64_t from, to;
} ShrinkNote;

enum { SHRINK_NOTES_MAX = 24 };

typedef struct ShrinkReport {
    int n;
    ShrinkNote notes[SHRINK_NOTES_MAX];
} ShrinkReport;

/*
 * Reduces a plan in place: widths, vocabulary, tokens, experts, layers (each kind stays), micro-batches (three at most), ranks
 * (expert parallelism, sharding and replicas stay where they were). The report names every size that it looks at.
 */
void shrink_plan(Plan *plan, ShrinkReport *ret_report);

/* "layers 93 to 6, experts 896 to 32": what changed, or "nothing"; caller frees. */
char *shrink_text(const ShrinkReport *report);
