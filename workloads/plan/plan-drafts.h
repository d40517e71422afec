/*
 * Drafts: a plan as it stood before each of its parts was read, so that the next plan is read from the first part on in
 * which it differs.
 *
 * Parts are read in a fixed order, and what a reader sees of the plan was made by the readers before it. So a plan whose
 * first parts are those of the plan before goes on from that plan's draft, and what it becomes, or what is wrong with it, is
 * what reading all of it gives. Parts are the same when they are the same values: drafts hold them, and nobody may change
 * them while drafts live.
 */
#pragma once

#include "workloads/plan/plan.h"

typedef struct PlanDrafts PlanDrafts;

/* For plans of n_parts parts. */
PlanDrafts *plan_drafts_new(guint n_parts);
void plan_drafts_free(PlanDrafts *drafts);

/*
 * Fills an empty plan with the draft of the longest beginning that it shares with the plan before; values[n_parts]: its
 * parts, NULL where absent. base_dir: what paths are relative to (may be NULL). Returns the first part to read.
 */
guint plan_drafts_start(PlanDrafts *drafts, json_t *const *values, const char *base_dir, Plan *plan);

/* Notes that the part has been read without mistake, from that value (may be NULL), and how the plan stands now. */
void plan_drafts_note(PlanDrafts *drafts, guint part, json_t *value, const Plan *plan);
