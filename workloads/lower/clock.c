#include "workloads/lower/clock.h"

#include <math.h>

const double clock_shares[N_CLOCK_SHARES] = {[CLOCK_LEAST] = 0.3, [CLOCK_USUAL] = 0.5, [CLOCK_HIGHEST] = 0.75};

gint32 clock_difference(SimTime ns, int n_launches)
{
    return (gint32)CLAMP(ns * n_launches, G_MININT32, G_MAXINT32);
}

/* Shares are told apart to 1/512, far below what they are known to: steps of nearly the same load run at the same clock. */
static const double CLOCK_GRAIN = 512;

static void settle_segment(Segment *segment)
{
    PowerSums *power = &segment->power;
    if (segment->is_settled) {
        return;
    }
    for (guint k = 0; k < segment->instrs->len; k++) {
        const Instr *instr = &g_array_index(segment->instrs, Instr, k);
        if (instr->kind == INSTR_COMPUTE && instr->stream == STREAM_COMPUTE) {
            power->busy_ns += (double)instr->device_ns;
            power->power_ns += (double)instr->device_ns * (double)instr->power_share;
        } else if (instr->kind == INSTR_COLLECTIVE) {
            power->comm_ns += (double)instr->device_ns;
            power->comm_power_ns += (double)instr->device_ns * (double)instr->power_share;
        }
    }
    segment->is_settled = TRUE;
}

static void add_power(PowerSums *sums, const PowerSums *more, int64_t times)
{
    sums->busy_ns += (double)times * more->busy_ns;
    sums->power_ns += (double)times * more->power_ns;
    sums->comm_ns += (double)times * more->comm_ns;
    sums->comm_power_ns += (double)times * more->comm_power_ns;
}

void clock_add_call(const GArray *calls, guint call, const GPtrArray *segments, int64_t times, PowerSums *sums)
{
    Segment *segment = g_ptr_array_index(segments, g_array_index(calls, Call, call).segment);
    settle_segment(segment);
    add_power(sums, &segment->power, times);
}

/* Power share of the compute stream over all calls. Collectives draw power beside it, at most as long as it computes. */
static double program_share(const Program *program)
{
    PowerSums sums = {0};
    guint r = 0;
    for (guint c = 0; c < program->calls->len;) {
        const ProgramRun *run = r < program->runs->len ? &g_array_index(program->runs, ProgramRun, r) : NULL;
        if (run != NULL && run->first == c) {
            add_power(&sums, &run->power, program_call_times(program, c));
            c += run->n;
            r++;
        } else {
            clock_add_call(program->calls, c, program->segments, program_call_times(program, c), &sums);
            c++;
        }
    }
    sums.power_ns += sums.comm_ns > sums.busy_ns ? sums.comm_power_ns * sums.busy_ns / sums.comm_ns : sums.comm_power_ns;
    return sums.busy_ns > 0.0 ? sums.power_ns / sums.busy_ns : clock_shares[CLOCK_USUAL];
}

void clock_settle(Program *program)
{
    double share = CLAMP(program_share(program), clock_shares[CLOCK_LEAST], clock_shares[CLOCK_HIGHEST]);
    share = round(share * CLOCK_GRAIN) / CLOCK_GRAIN;
    int side = share < clock_shares[CLOCK_USUAL] ? CLOCK_LEAST : CLOCK_HIGHEST;
    double part = (share - clock_shares[CLOCK_USUAL]) / (clock_shares[side] - clock_shares[CLOCK_USUAL]);
    program->clock = (ProgramClock){side == CLOCK_LEAST ? 0 : 1, part};
}
