/*
 * Record: what happened in a step, for reports: kernels and collectives with their times, memory by tag over time.
 *
 * The step is run once more under observation. Of micro-batches that are alike, two are run, as in the ledger: the others
 * would look the same. Kernels stand at the device's time; memory stands at the host's, which allocates ahead of the device
 * in the order in which it issues.
 *
 * A record is bounded: classes of ranks are shown as long as their kernels are no more than a limit. The slowest and
 * the one with the most memory are always shown, then that with the longest kernels, then the others in order.
 */
#pragma once

#include "models/block.h"
#include "sim/mem/tracker.h"
#include "workloads/plan/plan.h"
#include "workloads/run/groups.h"
#include "workloads/run/result.h"
#include "workloads/run/step.h"

enum { RECORD_KERNELS_MAX = 120000, RECORD_POINTS_MAX = 1 << 15 };

/* A kernel or collective of a class that is shown. */
typedef struct RecordKernel {
    StepSite site;
    SimTime start_ns, end_ns;
    gint32 meeting;    /* number of the rendezvous of all classes, the same for every member; -1 = none */
    gint32 last_class; /* the class that the others of a meeting waited for */
} RecordKernel;

/* A phase of a class that is shown. */
typedef struct RecordPhase {
    gint32 rank_class;
    Phase phase;
    gint32 micro_batch; /* -1: of the whole step */
    SimTime start_ns, end_ns;
} RecordPhase;

typedef struct RunRecord {
    Plan plan;           /* borrows; with the part of the DDR budget that the result used */
    ModelGraph *graphs;
    RunGroups groups;    /* of which the slowest is shown, rank by rank */
    int64_t slowest_rank; /* in the cluster: its rank that decides the time of the first MoE layer */
    Program *listed;     /* whose kernels the result lists: with loads, each layer that of its hottest rank */
    GPtrArray *programs; /* Program, by class, with the works of their kernels; with loads, the ranks of one group */
    gboolean *shown;     /* by class */
    GArray *kernels;     /* RecordKernel, in the order in which they ended */
    GArray *phases;      /* RecordPhase */
    Tracker **memory;    /* by class, with MemTag as tags; NULL = not shown */
    GroupMemory fullest; /* the rank whose memory the result reports, in whichever group */
    Tracker *fullest_memory; /* its own; at the times at which the rank at its place of the group shown issues */
    Tracker *told_memory;    /* the same at the times of the result, whose programs are those of the hottest ranks */
    SimTime told_begin_ns;   /* from which its times count */
    guint8 meets[N_GROUP_KINDS][N_COLLS]; /* step_network_meets() */
    int64_t n_shown_repeats, n_repeats; /* runs of the repeated block: shown, and in the step */
    SimTime begin_ns;    /* earliest of all times here; the step begins where the first phase does */
} RunRecord;

/*
 * Lowers and runs a plan. n_kernels_max bounds what is shown, RECORD_KERNELS_MAX by default; a rank at the place of the one
 * with the most memory is shown in any case. result: of the plan. Borrows what the plan owns.
 */
RunRecord *run_record_new(const Plan *plan, const Result *result, int64_t n_kernels_max, GError **error);
void run_record_free(RunRecord *record);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RunRecord, run_record_free)

const Program *run_record_program(const RunRecord *record, gint32 rank_class);

/* Rank of the cluster that a class shows: the slowest group's. */
int64_t run_record_rank(const RunRecord *record, gint32 rank_class);

/* The class of slowest_rank. */
gint32 run_record_slowest(const RunRecord *record);

/* What a site names. */
const Call *run_record_call(const RunRecord *record, const StepSite *site);
const Segment *run_record_segment(const RunRecord *record, const StepSite *site);
const Instr *run_record_instr(const RunRecord *record, const StepSite *site);

/* Micro-batch of a site, and how often it happens in the step: more than once for the last of those that are shown. */
int64_t run_record_micro_batch(const RunRecord *record, const StepSite *site);
int64_t run_record_stands_for(const RunRecord *record, const StepSite *site);

/*
 * Micro-batches of which no backward pass is shown: how many, and the first. (Where passes interleave, the forward passes that are not
 * shown are those of the micro-batches after.)
 */
int64_t run_record_hidden(const RunRecord *record, int64_t *ret_first);
