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
    SimTime exposed_copy_ns;      /* copies between HBM and DDR running while the compute stream does not: stalls */
    SimTime exposed_host_ns;      /* nothing running there */
    SimTime busy_ns[N_LABELS];    /* observed class: time of kernels by label, collectives included */
    int64_t launches[N_LABELS];
    double flops[N_LABELS];
    int64_t moved_bytes[N_LABELS]; /* copies between HBM and DDR, by label */
    double recomputed_flops;
    SimTime coll_ns[N_GROUP_KINDS][N_COLLS];
    int64_t coll_count[N_GROUP_KINDS][N_COLLS];
    int64_t coll_bytes[N_GROUP_KINDS][N_COLLS];
    SimTime evidence_ns[N_EVIDENCES];
    uint64_t n_events;
} StepTimes;

/*
 * Runs one program per class (n of them, the same calls of collectives). Errors: a deadlock, which is a fault of the
 * lowering, with what waits for what.
 */
gboolean step_run(const Plan *plan, Program *const *programs, int64_t n_classes, StepTimes *ret_times, GError **error);

/* The same with every repeated micro-batch simulated: what step_run must equal. For tests. */
gboolean step_run_unfolded(const Plan *plan, Program *const *programs, int64_t n_classes, StepTimes *ret_times, GError **error);
