#include "workloads/lower/clock.h"

#include <math.h>

const double clock_shares[N_CLOCK_SHARES] = {[CLOCK_LEAST] = 0.3, [CLOCK_USUAL] = 0.5, [CLOCK_HIGHEST] = 0.75};

gint32 clock_difference(SimTime ns, int n_launches)
{
    return (gint32)CLAMP(ns * n_launches, G_MININT32, G_MAXINT32);
}

/* Shares are told apart to 1/512, far below what they are known to: steps of nearly the same load run at the same clock. */
static const double CLOCK_GRAIN = 512;

/* Times and power of a segment's kernels on the compute stream, and of its collectives. */
static void settle_segment(Segment *segment)
{
    if (segment->is_settled) {
        return;
    }
    for (guint k = 0; k < segment->instrs->len; k++) {
        const Instr *instr = &g_array_index(segment->instrs, Instr, k);
        if (instr->kind == INSTR_COMPUTE && instr->stream == STREAM_COMPUTE) {
            segment->busy_ns += (double)instr->device_ns;
            segment->power_ns += (double)instr->device_ns * (double)instr->power_share;
        } else if (instr->kind == INSTR_COLLECTIVE) {
            segment->comm_ns += (double)instr->device_ns;
            segment->comm_power_ns += (double)instr->device_ns * (double)instr->power_share;
        }
    }
    segment->is_settled = TRUE;
}

/* Power share of the compute stream over all calls. Collectives draw power beside it, at most as long as it computes. */
static double program_share(const Program *program)
{
    g_autofree double *n_calls = g_new0(double, program->segments->len);
    for (guint i = 0; i < program->calls->len; i++) {
        n_calls[g_array_index(program->calls, Call, i).segment] += (double)program_call_times(program, i);
    }
    double busy = 0.0, power = 0.0, comm = 0.0, comm_power = 0.0;
    for (guint i = 0; i < program->segments->len; i++) {
        Segment *segment = program_segment(program, (int)i);
        settle_segment(segment);
        busy += segment->busy_ns * n_calls[i];
        power += segment->power_ns * n_calls[i];
        comm += segment->comm_ns * n_calls[i];
        comm_power += segment->comm_power_ns * n_calls[i];
    }
    power += comm > busy ? comm_power * busy / comm : comm_power;
    return busy > 0.0 ? power / busy : clock_shares[CLOCK_USUAL];
}

void clock_settle(Program *program)
{
    double share = CLAMP(program_share(program), clock_shares[CLOCK_LEAST], clock_shares[CLOCK_HIGHEST]);
    share = round(share * CLOCK_GRAIN) / CLOCK_GRAIN;
    int side = share < clock_shares[CLOCK_USUAL] ? CLOCK_LEAST : CLOCK_HIGHEST;
    double part = (share - clock_shares[CLOCK_USUAL]) / (clock_shares[side] - clock_shares[CLOCK_USUAL]);
    program->clock = (ProgramClock){side == CLOCK_LEAST ? 0 : 1, part};
}
