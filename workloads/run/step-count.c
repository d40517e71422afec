#include "workloads/run/step-memo.h"

/* What one instruction adds when it runs n times. */
static void count_instr(const Instr *instr, const ProgramClock *clock, int64_t n, StepTimes *times)
{
    SimTime device_ns = program_instr_ns(clock, instr);
    times->launches[instr->label] += n * instr->n_launches;
    times->flops[instr->label] += (double)n * instr->flops;
    times->busy_ns[instr->label] += n * device_ns;
    times->evidence_ns[instr->evidence] += n * device_ns;
    times->moved_bytes[instr->label] += n * (instr->kind == INSTR_COMPUTE ? instr->bytes : 0);
    if (instr->phase == PHASE_RECOMPUTE) {
        times->recomputed_flops += (double)n * instr->flops;
    }
    if (instr->kind == INSTR_COLLECTIVE) {
        times->coll_ns[instr->group][instr->coll] += n * device_ns;
        times->coll_count[instr->group][instr->coll] += n;
        times->coll_bytes[instr->group][instr->coll] += n * instr->bytes;
    }
}

void step_count(const Program *program, StepTimes *times)
{
    g_autofree int64_t *n_calls = g_new0(int64_t, program->segments->len);
    for (guint i = 0; i < program->calls->len; i++) {
        n_calls[g_array_index(program->calls, Call, i).segment] += program_call_times(program, i);
    }
    for (guint s = 0; s < program->segments->len; s++) {
        const GArray *instrs = program_segment(program, (int)s)->instrs;
        for (guint i = 0; i < instrs->len; i++) {
            const Instr *instr = &g_array_index(instrs, Instr, i);
            if (instr->kind == INSTR_COMPUTE || instr->kind == INSTR_COLLECTIVE) {
                count_instr(instr, &program->clock, n_calls[s], times);
            }
        }
    }
}
