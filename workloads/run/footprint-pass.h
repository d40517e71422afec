/*
 * Profiles of passes over one graph, for the footprint of a step.
 *
 * A timeline has a few places before the operators, STRIDE places for each operator of the recomputation and of the
 * backward pass, and a few places at the end. Bytes are born at a place and die after one; the running sum gives the
 * profile.
 */
#pragma once

#include "models/block.h"
#include "workloads/lower/retention.h"
#include "workloads/plan/plan.h"

/* What a pass leaves behind, and the most that it holds beyond what it found. */
typedef struct Profile {
    int64_t net_bytes, peak_bytes;
} Profile;

/* One after the other. */
Profile profile_then(Profile first, Profile second);

/* Bytes of one FSDP group, each allocation rounded; all 0 where there is none. */
typedef struct GroupBytes {
    int64_t cast, flat;       /* 0 on one rank */
    int64_t params;           /* a buffer per parameter */
    int64_t alone_extra;      /* casting parameter by parameter on one rank holds this much more */
    int64_t grads, last_grad; /* unsharded gradients, and the last of them */
    int64_t reduce_in, reduce_out, shard_grad;
    gboolean out_is_grad; /* what is reduced becomes the gradient shard without a cast */
    gboolean lingers;     /* the last gradient outlives the others */
    gboolean plain;       /* nothing is gathered or reduced: gradients stay */
} GroupBytes;

/* A pass has one part more than cuts. */
enum { TIMELINE_CUTS_MAX = 2, TIMELINE_PARTS_MAX };

typedef struct Timeline {
    int64_t *born, *dead; /* by place */
    int n;
    int cuts[TIMELINE_CUTS_MAX], n_cuts; /* places at which another pass may go on, behind what is born and before what dies there */
} Timeline;

void timeline_alive(Timeline *timeline, int64_t bytes, int from, int to);
void timeline_born(Timeline *timeline, int64_t bytes, int at);
void timeline_dead(Timeline *timeline, int64_t bytes, int at);

/* A group's all-gather is issued: one place. */
void timeline_unshard(Timeline *timeline, const GroupBytes *group, int at);
/* Its parameters are copied out, after last_flat bytes of an earlier flat buffer died: two places. */
void timeline_wait(Timeline *timeline, const GroupBytes *group, int at, gboolean frees_flat, int64_t last_flat);
/* Its gradients are reduced, after pending bytes of an earlier reduction died: four places. Returns what is pending now. */
int64_t timeline_reduce(Timeline *timeline, const GroupBytes *group, int at, int64_t pending, gboolean first);

/* A timeline of places alone; frees it. */
void timeline_init(Timeline *timeline, int n);
Profile timeline_end(Timeline *timeline);

/* The same part by part; returns how many. */
int timeline_end_parts(Timeline *timeline, Profile *ret_parts);

/* What outlives a forward pass. */
typedef enum PassKeep { PASS_KEEP_ALL, PASS_KEEP_NONE, PASS_KEEP_SELECTED } PassKeep;

/* One pass over operators first … end - 1 of a graph. */
typedef struct PassSpec {
    const Plan *plan;
    const Graph *graph;
    const RowCounts *rows;
    PassKeep keep;
    const Retention *retention;           /* what of it, and where; NULL: nothing moves, nothing is selected */
    int first, end;
    int cut_tensor;                       /* handed to operators after the range, or -1 */
    int dying_source;                     /* input that no earlier pass reads, or -1 */
    gboolean source_grads[OP_INPUTS_MAX]; /* inputs whose gradient exists before the backward pass */
    const GroupBytes *group;              /* gathered and reduced by the pass, or NULL */
    const GroupBytes *experts;            /* nested in it, or NULL */
    const GroupBytes *next;               /* gathered ahead, or NULL */
    int next_op;                          /* operator before whose backward that happens; -1 = at the start */
    int64_t own_flat;                     /* forward: flat bytes that die at the experts' wait */
    int64_t pending;                      /* backward: reduce buffer of the pass before */
    gboolean first_micro_batch;
} PassSpec;

/* Places before the operators that the caller may use in forward. */
enum { PASS_PROLOGUE = 8, PASS_EPILOGUE = 48 };

/* Adds the pass to a new timeline; the caller adds its own before ending it. */
void pass_forward(const PassSpec *spec, Timeline *ret_timeline);

/*
 * The same for the backward pass. *ret_final: first of PASS_EPILOGUE free places after it; *ret_pending: reduce buffer that
 * waits then. FALSE: not claimed.
 */
gboolean pass_backward(const PassSpec *spec, Timeline *ret_timeline, int *ret_final, int64_t *ret_pending);

/* Elements of a parameter's shard on the fullest rank. */
int64_t footprint_shard_numel(const Plan *plan, const GraphParam *param);

/* Bytes of optimizer state, a master copy included, for a shard of that many elements. */
int64_t footprint_state_bytes(const Plan *plan, const GraphParam *param, int64_t shard);

/* The same of a tensor that the rank updates, wherever its states lie; and whether Muon takes it. */
int64_t footprint_tensor_state_bytes(const Plan *plan, const GraphParam *param, int64_t shard);
gboolean footprint_is_muons(const Plan *plan, const GraphParam *param);

/* Where whole tensors are dealt to ranks: states of the fullest one. */
int64_t footprint_deal_state_bytes(const Plan *plan, const ModelGraph *graphs);

/* What a round of whole matrices holds, in bytes. */
typedef struct FootprintRound {
    int64_t slices, owned, work, back;
    int64_t momentum, master; /* that pass through HBM */
} FootprintRound;

/* Appends the rounds of dealt tensors; and the buffer in which these are gathered at last. */
void footprint_deal_rounds(const Plan *plan, const ModelGraph *graphs, GArray *rounds);
int64_t footprint_deal_gather(const Plan *plan, const ModelGraph *graphs);

/* Most that the optimizer's step holds beyond parameters, gradients and states: whole matrices of Muon, or dealt tensors gathered. */
int64_t footprint_optimizer_peak(const Plan *plan, const ModelGraph *graphs);

/* Memory that the slots of a layer's operators take which an event frees or brings back (ops by operator). */
int64_t pass_slot_bytes(const Retention *retention, const Graph *graph, const RowCounts *rows, const guint8 *ops);

/* Bytes of an allocation as they count. */
int64_t pass_round(int64_t bytes);
