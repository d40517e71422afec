#include "workloads/lower/clock.h"

#include <math.h>

const double clock_shares[N_CLOCK_SHARES] = {[CLOCK_LEAST] = 0.3, [CLOCK_USUAL] = 0.5, [CLOCK_HIGHEST] = 0.75};

gint32 clock_difference(SimTime ns, int n_launches)
{
    return (gint32)CLAMP(ns * n_launches, G_MININT32, G_MAXINT32);
}

/* Power share of the compute stream over all calls. */
static double program_share(const Program *program)
{
    g_autofree double *n_calls = g_new0(double, program->segments->len);
    for (guint i = 0; i < program->calls->len; i++) {
        n_calls[g_array_index(program->calls, Call, i).segment] += (double)program_call_times(program, i);
    }
    double busy = 0.0, power = 0.0;
    for (guint i = 0; i < program->segments->len; i++) {
        const GArray *instrs = program_segment(program, (int)i)->instrs;
        for (guint k = 0; k < instrs->len; k++) {
            const Instr *instr = &g_array_index(instrs, Instr, k);
            if (instr->kind == INSTR_COMPUTE && instr->stream == STREAM_COMPUTE) {
                double ns = (double)instr->device_ns * n_calls[i];
                busy += ns;
                power += ns * (double)instr->power_share;
            }
        }
    }
    return busy > 0.0 ? power / busy : clock_shares[CLOCK_USUAL];
}

void clock_settle(Program *program)
{
    double share = CLAMP(program_share(program), clock_shares[CLOCK_LEAST], clock_shares[CLOCK_HIGHEST]);
    int side = share < clock_shares[CLOCK_USUAL] ? CLOCK_LEAST : CLOCK_HIGHEST;
    double part = (share - clock_shares[CLOCK_USUAL]) / (clock_shares[side] - clock_shares[CLOCK_USUAL]);
    for (guint i = 0; i < program->segments->len; i++) {
        const GArray *instrs = program_segment(program, (int)i)->instrs;
        for (guint k = 0; k < instrs->len; k++) {
            Instr *instr = &g_array_index(instrs, Instr, k);
            if (instr->kind == INSTR_COMPUTE) {
                instr->device_ns += (SimTime)llround(part * instr->clock_ns[side == CLOCK_LEAST ? 0 : 1]);
            }
        }
    }
}
