/*
 * Lowering: a plan and its graphs become one program per class of ranks.
 *
 * Ranks of one class run the same instructions with the same durations and sizes. Balanced experts make one class. Where
 * loads differ, the ranks of an expert-parallel group differ between dispatch and combine alone, and all wait there for the
 * hottest (lower/hottest.h): in time one program stands for a group, each layer of which has the rows of its hottest rank. In
 * memory every rank is its own class. Groups with the same loads are alike.
 *
 * FSDP groups follow the measured runs: each layer is one group (with EP its experts are a nested group on the expert
 * mesh); the head is a group of its own that stays gathered, unless the loss runs in chunks; embedding, final norm (and
 * then the head) form the root group, gathered from the first use to the end of backward.
 */
#pragma once

#include "models/block.h"
#include "workloads/lower/program.h"
#include "workloads/lower/segment-cache.h"
#include "workloads/plan/plan.h"
#include "workloads/plan/routing.h"

/* The graphs of a plan's model, built once per plan. */
ModelGraph *lower_graphs(const Plan *plan);

/* In place of a rank: in every layer the rank that decides its time. */
enum { LOWER_HOTTEST = -1 };

/*
 * Program of the class of ranks at `ep_rank` of its EP group. Borrows plan, graphs and routing (NULL: every rank and every
 * expert gets the same rows).
 */
Program *lower_plan(const Plan *plan, const ModelGraph *graphs, const Routing *routing, int64_t ep_rank);

/* The same with the work of every kernel kept (Segment.works): for reports. */
Program *lower_plan_described(const Plan *plan, const ModelGraph *graphs, const Routing *routing, int64_t ep_rank);
/* The same, taking from a cache what other plans had lowered (NULL: from scratch), and leaving there what they may need. */
Program *lower_plan_cached(LowerCache *cache, const Plan *plan, const ModelGraph *graphs, const Routing *routing, int64_t ep_rank);

/* lower_static_bytes() of the program of a plan, without lowering it. */
int64_t lower_plan_static_bytes(LowerCache *cache, const Plan *plan, const ModelGraph *graphs);

/* Device and library memory that is no tensor of the program: bytes of the static tags of one rank. */
int64_t lower_static_bytes(const Program *program);
