/*
 * Bound: what no run of a plan's program goes below, by closed form.
 *
 * Time. Streams run their works in order and never faster than alone, so (1) between the first and the last work of a call
 * on the compute stream lies at least the longest chain through the call's instructions: works of one stream one after the
 * other, and from stream to stream by the tokens that the call itself records and waits for (dispatch, experts, combine);
 * calls follow one another on the compute stream, so their chains add up. (2) Each stream has all its works of the step to
 * do. The larger of both is the bound. What a call waits for from other calls, hosts that are late, and works that slow
 * each other down make a step longer than that.
 *
 * Memory. What is alive between steps is alive at the peak.
 */
#pragma once

#include "workloads/lower/program.h"

typedef struct Bound {
    SimTime step_ns;      /* step_run of the program gives at least that */
    SimTime layers_ns;    /* the same from the layers alone: whatever embedding, head, loss and the rest of the step are */
    int64_t static_bytes; /* ledger_run of the program has at least that as its peak */
} Bound;

void bound_of_program(const Program *program, Bound *ret_bound);
