/*
 * Clock: what a step's own load does to the clock that its kernels run at.
 *
 * Kernels are emitted at a usual power share of the step, with what they gain or lose at a low and a high one. Once the
 * whole program is known, so is its share, and every kernel is settled between these.
 */
#pragma once

#include "workloads/lower/program.h"

enum { CLOCK_LEAST, CLOCK_USUAL, CLOCK_HIGHEST, N_CLOCK_SHARES };

/* Step shares at which kernels are priced. */
extern const double clock_shares[N_CLOCK_SHARES];

/* ns x n_launches, kept within what an instruction can hold. */
gint32 clock_difference(SimTime ns, int n_launches);

/* Adds what a call of a list draws, so many times. */
void clock_add_call(const GArray *calls, guint call, const GPtrArray *segments, int64_t times, PowerSums *sums);

/* Settles the clock of a whole program. */
void clock_settle(Program *program);
