/*
 * Peak time: when in the step a rank holds most, by the simulation in time.
 *
 * The step is run once more under observation, and the rank's memory goes along with the host that issues its
 * instructions. Of micro-batches that are alike two are run, as in the ledger. Seconds count from the first thing that
 * the step does.
 */
#pragma once

#include "workloads/run/step.h"

typedef struct PeakTime {
    int64_t bytes;
    gint32 call, instr, repeat; /* the instruction that makes it; -1 = nothing exceeds what is there between steps */
    double seconds;             /* when the host issues it: memory is taken in host order, ahead of the device */
} PeakTime;

/*
 * Programs of the classes, as step_run() takes them; `held` is the program whose memory is meant, with the same calls
 * as that of host_class, whose host issues it.
 */
gboolean peak_time_find(const Plan *plan, Program *const *programs, int64_t n_classes, int64_t host_class,
                        const Program *held, PeakTime *ret_time, GError **error);
