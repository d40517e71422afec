/*
 * The best rows of a sweep, one row after the other: the first few by the objective, and the Pareto front.
 *
 * A row is on the front when no other is at least as good in every goal and better in one; of rows that are alike in all
 * goals the first is kept. Memory grows with the front, not with the rows.
 */
#pragma once

#include "reports/cli/sweep-rows.h"

typedef struct SweepRow {
    GPtrArray *cells; /* char *, by column */
    int64_t number;   /* in the file, from 1 */
} SweepRow;

typedef struct SweepFront SweepFront;

SweepFront *sweep_front_new(const Sweep *sweep, const SweepLayout *layout);
void sweep_front_free(SweepFront *front);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SweepFront, sweep_front_free)

/* Takes a reference to the cells if the row is among the best. A row without a goal's number cannot be. */
void sweep_front_add(SweepFront *front, GPtrArray *cells, int64_t number);

/* The best row, NULL when there is none; the best `top` rows, the best first; the front, the best by the objective first. */
const SweepRow *sweep_front_best(const SweepFront *front);
const GPtrArray *sweep_front_top(const SweepFront *front);
const GPtrArray *sweep_front_rows(SweepFront *front);
