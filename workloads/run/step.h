/*
 * Step: the program in time.
 *
 * Each class of ranks has a host that issues instructions in order, and streams on a device that its kernels share. The
 * host runs ahead of the device until an instruction makes it wait. A kernel starts when its stream is free, what it waits
 * for is done, and the host has issued it; a collective when all its members have come.
 *
 * Micro-batches after the first are alike: a few are simulated, and once two in a row took the same time the others follow.
 */
#pragma once

#include "workloads/lower/program.h"
#include "workloads/plan/plan.h"

typedef struct StepTimes {
    SimTime step_ns;
    SimTime phase_ns[N_PHASES];   /* end of the last kernel of forward (summed over micro-batches), backward, optimizer */
    SimTime exposed_comm_ns;      /* collectives running while the compute stream of the observed class does not */
    SimTime exposed_copy_ns;      /* copies between HBM and DDR running while nothing computes or communicates: stalls */
    SimTime exposed_host_ns;      /* nothing running there */
    SimTime crowded_ns;           /* links of the network slow collectives of the observed class down */
    SimTime busy_ns[N_LABELS];    /* observed class: time of kernels by label, collectives included */
    SimTime recomputed_ns[N_LABELS]; /* of that, in recomputation */
    SimTime host_ns;              /* what its host works to issue the step */
    SimTime table_ns, pages_ns;   /* of that, to fill tables that copy-ins of gradients read, and on fresh pages of these */
    int64_t launches[N_LABELS];
    double flops[N_LABELS];
    int64_t moved_bytes[N_LABELS]; /* copies between HBM and DDR, by label */
    double recomputed_flops;
    SimTime coll_ns[N_GROUP_KINDS][N_COLLS];
    int64_t coll_count[N_GROUP_KINDS][N_COLLS];
    int64_t coll_bytes[N_GROUP_KINDS][N_COLLS];
    LinkLoad coll_load[N_GROUP_KINDS][N_COLLS][N_STREAMS]; /* the largest parts that one of them takes, by stream */
    SimTime evidence_ns[N_EVIDENCES];
    uint64_t n_events;
} StepTimes;

/*
 * Levels of the network (bits by NetLevel) at which a kind of collective may meet others of the step: at most one of each
 * stream runs at once, and there the largest parts of all streams are more than a link. 0: it cannot, and every one of
 * them takes what the closed form says.
 */
guint32 step_network_meets(const StepTimes *times, GroupKind group, CollKind coll);

/* What steps of one session remember for each other. Serves one thread. */
typedef struct StepMemo StepMemo;
StepMemo *step_memo_new(void);
void step_memo_free(StepMemo *memo);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(StepMemo, step_memo_free)

/* Memory that it takes; forgets everything. */
size_t step_memo_size_bytes(const StepMemo *memo);
void step_memo_clear(StepMemo *memo);

/*
 * Runs one program per class (n of them, the same calls of collectives). Errors: a deadlock, which is a fault of the
 * lowering, with what waits for what.
 */
gboolean step_run(const Plan *plan, Program *const *programs, int64_t n_classes, StepTimes *ret_times, GError **error);

/* An instruction of the measured step: the instr-th of the call-th call, in the repeat-th run of the repeated block. */
typedef struct StepSite {
    gint32 rank_class;
    gint32 call, instr, repeat;
} StepSite;

/* Who is told what happens in the measured step, in the order in which it happens. Times are of the simulation's clock. */
typedef struct StepObserver {
    /* The host of a class has come to an instruction, at host_ns of its own time; host order is memory's order. */
    void (*issued)(void *self, const StepSite *site, SimTime host_ns);
    /* A kernel or collective has run. Members of a collective that meet are told of in the order in which they came. */
    void (*ran)(void *self, const StepSite *site, SimTime start_ns, SimTime end_ns);
    /* A phase of a class has ended. The first that is told of is the optimizer of the step before: there the step begins. */
    void (*marked)(void *self, gint32 rank_class, Phase phase, SimTime ns);
    void *self;
} StepObserver;

/*
 * Runs the step with n_repeats of the repeated block (at least 2, at most all; nothing else is left out), and tells the
 * observer. ret_times adds what was left out as step_run() does, to the jitter of one repetition.
 */
gboolean step_observe(const Plan *plan, Program *const *programs, int64_t n_classes, int64_t n_repeats,
                      const StepObserver *observer, StepTimes *ret_times, GError **error);

/*
 * Whether classes meet in the collectives of a group: the ranks of one expert-parallel group in its exchanges, one class each
 * of several groups where parameters are gathered and reduced. Classes are the one or the other.
 */
gboolean step_group_meets(Program *const *programs, int64_t n_classes, GroupKind group);

/* The same with a memo, which makes it faster and changes nothing else. */
gboolean step_run_memo(StepMemo *memo, const Plan *plan, Program *const *programs, int64_t n_classes, StepTimes *ret_times,
                       GError **error);

/* The same with every repeated micro-batch simulated: what step_run must equal. For tests. */
gboolean step_run_unfolded(const Plan *plan, Program *const *programs, int64_t n_classes, StepTimes *ret_times, GError **error);
