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
    label->recomputed_ns += instr->phase == PHASE_RECOMPUTE ? device_ns : 0;
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

/* The sums that are not empty; in lists of their own. */
static void keep_sums(Dense *dense, SegmentCounts *counts)
{
    guint n_labels = 0, n_colls = 0;
    for (gint32 i = 0; i < N_LABELS; i++) {
        n_labels += dense->labels[i].launches > 0;
    }
    for (gint32 i = 0; i < N_GROUP_KINDS * N_COLLS; i++) {
        n_colls += dense->colls[i / N_COLLS][i % N_COLLS].count > 0;
    }
    counts->labels = g_new(LabelCount, n_labels);
    counts->colls = g_new(CollCount, n_colls);
    for (gint32 i = 0; i < N_LABELS; i++) {
        if (dense->labels[i].launches > 0) {
            dense->labels[i].label = i;
            counts->labels[counts->n_labels++] = dense->labels[i];
        }
    }
    for (gint32 i = 0; i < N_GROUP_KINDS * N_COLLS; i++) {
        CollCount *coll = &dense->colls[i / N_COLLS][i % N_COLLS];
        if (coll->count > 0) {
            coll->group = i / N_COLLS;
            coll->coll = i % N_COLLS;
            counts->colls[counts->n_colls++] = *coll;
        }
    }
}

void step_count_segment(const Segment *segment, const ProgramClock *clock, SegmentCounts *ret_counts)
{
    double device_ns = 0, host_ns = 0, bytes = 0, launches = 0; /* in doubles, which do not overflow */
    Dense dense;
    memset(&dense, 0, sizeof dense);
    memset(ret_counts, 0, sizeof *ret_counts);
    for (guint i = 0; i < segment->instrs->len; i++) {
        const Instr *instr = &g_array_index(segment->instrs, Instr, i);
        host_ns += (double)instr->host_ns;
        ret_counts->host_ns += instr->host_ns;
        ret_counts->table_ns += instr->kind == INSTR_HOST && instr->label == LABEL_GRAD_COPY_IN ? instr->host_ns : 0;
        ret_counts->pages_ns += instr->kind == INSTR_HOST && instr->label == LABEL_GRAD_PAGES ? instr->host_ns : 0;
        if (instr->kind == INSTR_COMPUTE || instr->kind == INSTR_COLLECTIVE) {
            count_instr(instr, clock, &dense, ret_counts);
            device_ns += (double)program_instr_ns(clock, instr);
            bytes += (double)instr->bytes;
            launches += instr->n_launches;
        }
    }
    ret_counts->most = fmax(16 * fmax(device_ns, host_ns), fmax(bytes, launches)); /* kernels at once slow each other down */
    keep_sums(&dense, ret_counts);
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
        times->recomputed_ns[label->label] += n * label->recomputed_ns;
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
    times->host_ns += n * counts->host_ns;
    times->table_ns += n * counts->table_ns;
    times->pages_ns += n * counts->pages_ns;
}

/* ---- runs ---- */

/* n times what one run of a segment adds. */
static void add_segment(const SegmentCounts *counts, int64_t n, Dense *dense, SegmentCounts *sum)
{
    for (guint i = 0; i < counts->n_labels; i++) {
        const LabelCount *more = &counts->labels[i];
        LabelCount *label = &dense->labels[more->label];
        label->launches += n * more->launches;
        label->flops += (double)n * more->flops;
        label->busy_ns += n * more->busy_ns;
        label->recomputed_ns += n * more->recomputed_ns;
        label->moved_bytes += n * more->moved_bytes;
    }
    for (guint i = 0; i < counts->n_colls; i++) {
        const CollCount *more = &counts->colls[i];
        CollCount *coll = &dense->colls[more->group][more->coll];
        coll->ns += n * more->ns;
        coll->count += n * more->count;
        coll->bytes += n * more->bytes;
        for (int s = 0; s < N_STREAMS; s++) {
            coll->loads[s] = link_load_max(coll->loads[s], more->loads[s]);
        }
    }
    for (int i = 0; i < N_EVIDENCES; i++) {
        sum->evidence_ns[i] += n * counts->evidence_ns[i];
    }
    sum->recomputed_flops += (double)n * counts->recomputed_flops;
    sum->host_ns += n * counts->host_ns;
    sum->table_ns += n * counts->table_ns;
    sum->pages_ns += n * counts->pages_ns;
    if (counts->longest_ns > sum->longest_ns) {
        sum->longest_ns = counts->longest_ns;
        sum->longest_label = counts->longest_label;
    }
}

static void find_facts(StepMemo *memo, const Program *program, const ProgramRun *run, RunFacts *facts)
{
    g_autofree int64_t *n_calls = g_new0(int64_t, program->segments->len + 1);
    Dense dense;
    memset(&dense, 0, sizeof dense);
    for (guint c = run->first; c < run->first + run->n; c++) {
        n_calls[g_array_index(program->calls, Call, c).segment]++;
    }
    for (guint s = 0; s < program->segments->len; s++) {
        if (n_calls[s] > 0) {
            Segment *segment = program_segment(program, (int)s);
            TimeView view = step_view(memo, segment, &program->clock);
            add_segment(step_counts(memo, segment, &program->clock), n_calls[s], &dense, &facts->counts);
            facts->ahead_ns = MAX(facts->ahead_ns, MAX(view.host_ns, view.reach_ns));
            facts->n_places = MAX(facts->n_places, view.n_places);
        }
    }
    keep_sums(&dense, &facts->counts);
    memo->known_bytes += sizeof *facts + facts->counts.n_labels * sizeof(LabelCount) + facts->counts.n_colls * sizeof(CollCount);
}

const RunFacts *step_run_facts(StepMemo *memo, const Program *program, const ProgramRun *run)
{
    RunFacts wanted = {.id = run->id, .side = program->clock.side, .part = program->clock.part};
    RunFacts *facts = g_hash_table_lookup(memo->runs, &wanted);
    if (facts == NULL) {
        facts = g_memdup2(&wanted, sizeof wanted);
        find_facts(memo, program, run, facts);
        g_hash_table_insert(memo->runs, facts, facts);
    }
    return facts;
}

int64_t *step_calls_beside_runs(const Program *program)
{
    int64_t *n_calls = g_new0(int64_t, program->segments->len + 1);
    guint r = 0;
    for (guint c = 0; c < program->calls->len;) {
        const ProgramRun *run = r < program->runs->len ? &g_array_index(program->runs, ProgramRun, r) : NULL;
        if (run != NULL && run->first == c) {
            c += run->n;
            r++;
        } else {
            n_calls[g_array_index(program->calls, Call, c).segment] += program_call_times(program, c);
            c++;
        }
    }
    return n_calls;
}

void step_count(StepMemo *memo, const Program *program, StepTimes *times)
{
    g_autofree int64_t *n_calls = step_calls_beside_runs(program);
    for (guint r = 0; r < program->runs->len; r++) {
        const ProgramRun *run = &g_array_index(program->runs, ProgramRun, r);
        add_counts(&step_run_facts(memo, program, run)->counts, program_call_times(program, run->first), times);
    }
    for (guint s = 0; s < program->segments->len; s++) {
        if (n_calls[s] > 0) {
            add_counts(step_counts(memo, program_segment(program, (int)s), &program->clock), n_calls[s], times);
        }
    }
}

/* ---- links ---- */

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
