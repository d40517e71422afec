/*
 * Lowering: a plan and its graphs become one program per class of ranks.
 *
 * Ranks of one class run the same instructions with the same durations and sizes. Balanced experts make one class; loads
 * that differ between the ranks of an EP group make one class per place in the group. Groups of ranks that differ only
 * in their replica are alike.
 *
 * FSDP groups follow the measured runs: each layer is one group (with EP its experts are a nested group on the expert
 * mesh); the head is a group of its own that stays gathered, unless the loss runs in chunks; embedding, final norm (and
 * then the head) form the root group, gathered from the first use to the end of backward.
 */
#pragma once

#include "models/block.h"
#include "workloads/lower/program.h"
#include "workloads/plan/plan.h"
#include "workloads/plan/routing.h"

/* The graphs of a plan's model, built once per plan. */
ModelGraph *lower_graphs(const Plan *plan);

/*
 * Program of the class of ranks at `ep_rank` of its EP group. Borrows plan, graphs and routing (NULL: every rank and every
 * expert gets the same rows).
 */
Program *lower_plan(const Plan *plan, const ModelGraph *graphs, const Routing *routing, int64_t ep_rank);

/* The same with the work of every kernel kept (Segment.works): for reports. */
Program *lower_plan_described(const Plan *plan, const ModelGraph *graphs, const Routing *routing, int64_t ep_rank);

/* Number of classes: 1, or ep when the loads of the EP ranks differ. */
int64_t lower_n_classes(const Plan *plan, const Routing *routing);

/* Device and library memory that is no tensor of the program: bytes of the static tags of one rank. */
int64_t lower_static_bytes(const Program *program);
