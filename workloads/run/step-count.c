#include <math.h>
#include <string.h>

#include "workloads/run/step-memo.h"

/* Sums of one run of a segment, dense; most of it stays zero. */
typedef struct Dense {
    LabelCount labels[N_LABELS];
    CollCount colls[N_GROUP_KINDS][N_COLLS];
} Dense;

static void count_instr(const Instr *instr, const ProgramClock *clock, Dense *dense, SegmentCounts *counts)
{
    SimTime device_ns = program_instr_ns(clock, instr);
    LabelCount *label = &dense->labels[instr->label];
    label->launches += instr->n_launches;
    label->flops += instr->flops;
    label->busy_ns += device_ns;
    label->moved_bytes += instr->kind == INSTR_COMPUTE ? instr->bytes : 0;
    counts->evidence_ns[instr->evidence] += device_ns;
    counts->recomputed_flops += instr->phase == PHASE_RECOMPUTE ? instr->flops : instr->repeated_flops;
    if (device_ns > counts->longest_ns || device_ns < 0) {
        counts->longest_ns = device_ns < 0 ? G_MAXINT64 : device_ns;
        counts->longest_label = instr->label;
    }
    if (instr->kind == INSTR_COLLECTIVE) {
        CollCount *coll = &dense->colls[instr->group][instr->coll];
        coll->ns += device_ns;
        coll->count++;
        coll->bytes += instr->bytes;
        coll->loads[instr->stream] = link_load_max(coll->loads[instr->stream], instr->load);
    }
}

/* What of a segment is most, in doubles, which do not overflow. */
static double most_of(const Segment *segment, const ProgramClock *clock)
{
    double device_ns = 0, host_ns = 0, bytes = 0, launches = 0;
    for (guint i = 0; i < segment->instrs->len; i++) {
        const Instr *instr = &g_array_index(segment->instrs, Instr, i);
        gboolean runs = instr->kind == INSTR_COMPUTE || instr->kind == INSTR_COLLECTIVE;
        host_ns += (double)instr->host_ns;
        device_ns += runs ? (double)program_instr_ns(clock, instr) : 0;
        bytes += runs ? (double)instr->bytes : 0;
        launches += runs ? instr->n_launches : 0;
    }
    return fmax(fmax(device_ns, host_ns), fmax(bytes, launches));
}

void step_count_segment(const Segment *segment, const ProgramClock *clock, SegmentCounts *ret_counts)
{
    g_autofree Dense *dense = g_new0(Dense, 1);
    memset(ret_counts, 0, sizeof *ret_counts);
    for (guint i = 0; i < segment->instrs->len; i++) {
        const Instr *instr = &g_array_index(segment->instrs, Instr, i);
        if (instr->kind == INSTR_COMPUTE || instr->kind == INSTR_COLLECTIVE) {
            count_instr(instr, clock, dense, ret_counts);
        }
    }
    ret_counts->most = most_of(segment, clock);
    ret_counts->labels = g_new(LabelCount, N_LABELS);
    ret_counts->colls = g_new(CollCount, N_GROUP_KINDS * N_COLLS);
    for (gint32 i = 0; i < N_LABELS; i++) {
        if (dense->labels[i].launches > 0) {
            dense->labels[i].label = i;
            ret_counts->labels[ret_counts->n_labels++] = dense->labels[i];
        }
    }
    for (gint32 i = 0; i < N_GROUP_KINDS * N_COLLS; i++) {
        CollCount *coll = &dense->colls[i / N_COLLS][i % N_COLLS];
        if (coll->count > 0) {
            coll->group = i / N_COLLS;
            coll->coll = i % N_COLLS;
            ret_counts->colls[ret_counts->n_colls++] = *coll;
        }
    }
    ret_counts->labels = g_renew(LabelCount, ret_counts->labels, ret_counts->n_labels);
    ret_counts->colls = g_renew(CollCount, ret_counts->colls, ret_counts->n_colls);
}

void step_counts_clear(SegmentCounts *counts)
{
    g_free(counts->labels);
    g_free(counts->colls);
}

static void add_counts(const SegmentCounts *counts, int64_t n, StepTimes *times)
{
    for (guint i = 0; i < counts->n_labels; i++) {
        const LabelCount *label = &counts->labels[i];
        times->launches[label->label] += n * label->launches;
        times->flops[label->label] += (double)n * label->flops;
        times->busy_ns[label->label] += n * label->busy_ns;
        times->moved_bytes[label->label] += n * label->moved_bytes;
    }
    for (guint i = 0; i < counts->n_colls; i++) {
        const CollCount *coll = &counts->colls[i];
        times->coll_ns[coll->group][coll->coll] += n * coll->ns;
        times->coll_count[coll->group][coll->coll] += n * coll->count;
        times->coll_bytes[coll->group][coll->coll] += n * coll->bytes;
        for (int s = 0; s < N_STREAMS; s++) {
            LinkLoad *load = &times->coll_load[coll->group][coll->coll][s];
            *load = link_load_max(*load, coll->loads[s]);
        }
    }
    for (int i = 0; i < N_EVIDENCES; i++) {
        times->evidence_ns[i] += n * counts->evidence_ns[i];
    }
    times->recomputed_flops += (double)n * counts->recomputed_flops;
}

/* The largest part of a level's link that collectives of each other stream take, all streams together. */
static guint32 parts_beside(const StepTimes *times, int stream, int level)
{
    guint32 sum = 0;
    for (int s = 0; s < N_STREAMS; s++) {
        guint32 most = 0;
        for (int i = 0; s != stream && i < N_GROUP_KINDS * N_COLLS; i++) {
            most = MAX(most, link_load_part(times->coll_load[i / N_COLLS][i % N_COLLS][s], level));
        }
        sum += most;
    }
    return sum;
}

guint32 step_network_meets(const StepTimes *times, GroupKind group, CollKind coll)
{
    guint32 levels = 0;
    for (int s = 0; s < N_STREAMS; s++) {
        for (int level = 0; level < N_NET_LEVELS; level++) {
            guint32 own = link_load_part(times->coll_load[group][coll][s], level);
            levels |= own > 0 && own + parts_beside(times, s, level) > LINK_PART_ONE ? 1u << level : 0;
        }
    }
    return levels;
}

void step_count(StepMemo *memo, const Program *program, StepTimes *times)
{
    g_autofree int64_t *n_calls = g_new0(int64_t, program->segments->len);
    for (guint i = 0; i < program->calls->len; i++) {
        n_calls[g_array_index(program->calls, Call, i).segment] += program_call_times(program, i);
    }
    for (guint s = 0; s < program->segments->len; s++) {
        add_counts(step_counts(memo, program_segment(program, (int)s), &program->clock), n_calls[s], times);
    }
}
