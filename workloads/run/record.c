#include "workloads/run/record.h"

#include "workloads/lower/lower.h"
#include "workloads/run/groups.h"
#include "workloads/run/trials.h"

enum { SHOWN_REPEATS = 2 }; /* as many as the ledger walks */

/* Memory of one program, instruction by instruction. */
typedef struct MemoryWalk {
    const Program *program;
    LedgerWalk *walk; /* NULL = not shown */
    int64_t held[N_MEM_TAGS];
} MemoryWalk;

/* A record being made. */
typedef struct Recorder {
    RunRecord *record;
    int64_t n_classes;
    MemoryWalk *walks;  /* by class */
    MemoryWalk fullest; /* of the rank with the most memory, driven by the class at its place */
    gint32 fullest_class;
    SimTime *phase_ns;  /* by class: end of the phase before; -1 = the step has not begun */
    gint32 *n_backward; /* by class: micro-batches that are through */
    guint first_kernel; /* of the meeting that is being told of */
    int64_t n_told;     /* members of it so far */
    gint32 n_meetings;
    GError *error; /* the first one of a ledger */
} Recorder;

static void program_destroy(void *program)
{
    program_free(program);
}

const Program *run_record_program(const RunRecord *record, gint32 rank_class)
{
    return g_ptr_array_index(record->programs, (guint)rank_class);
}

int64_t run_record_rank(const RunRecord *record, gint32 rank_class)
{
    int64_t n = (int64_t)record->programs->len;
    return record->slowest_rank / n * n + rank_class;
}

gint32 run_record_slowest(const RunRecord *record)
{
    return (gint32)(record->slowest_rank % (int64_t)record->programs->len);
}

const Call *run_record_call(const RunRecord *record, const StepSite *site)
{
    return &g_array_index(run_record_program(record, site->rank_class)->calls, Call, (guint)site->call);
}

const Segment *run_record_segment(const RunRecord *record, const StepSite *site)
{
    return program_segment(run_record_program(record, site->rank_class), run_record_call(record, site)->segment);
}

const Instr *run_record_instr(const RunRecord *record, const StepSite *site)
{
    return &g_array_index(run_record_segment(record, site)->instrs, Instr, (guint)site->instr);
}

static gboolean is_repeated(const RunRecord *record, const StepSite *site)
{
    const CallRepeat *repeat = &run_record_program(record, site->rank_class)->repeat;
    guint call = (guint)site->call;
    return repeat->times > 0 && call >= repeat->first && call < repeat->first + repeat->n;
}

int64_t run_record_micro_batch(const RunRecord *record, const StepSite *site)
{
    return program_micro_batch(run_record_program(record, site->rank_class), (guint)site->call, site->repeat);
}

int64_t run_record_stands_for(const RunRecord *record, const StepSite *site)
{
    gboolean is_last = is_repeated(record, site) && site->repeat == record->n_shown_repeats - 1;
    return is_last ? 1 + record->n_repeats - record->n_shown_repeats : 1;
}

int64_t run_record_hidden(const RunRecord *record, int64_t *ret_first)
{
    int64_t micro_batches = run_record_program(record, 0)->repeat.micro_batches;
    *ret_first = 1 + micro_batches * record->n_shown_repeats;
    return micro_batches * (record->n_repeats - record->n_shown_repeats);
}

/* A walk through a program and the history that it fills, begun with the static memory at the first instruction. */
static void memory_walk_init(MemoryWalk *memory, const Program *program)
{
    memory->program = program;
    memory->walk = ledger_walk_new(program);
}

static void memory_walk_start(MemoryWalk *memory, Tracker **tracker, SimTime ns)
{
    *tracker = tracker_new(N_MEM_TAGS);
    for (int tag = 0; tag < N_MEM_TAGS; tag++) {
        memory->held[tag] = memory->program->static_bytes[tag];
        tracker_add(*tracker, tag, memory->held[tag], ns, 0);
    }
    tracker_keep_history(*tracker, RECORD_POINTS_MAX);
    tracker_add(*tracker, 0, 0, ns, 0);
}

/* What one instruction changes. */
static void memory_walk_step(MemoryWalk *memory, Tracker **tracker, const StepSite *site, SimTime ns, GError **error)
{
    if (*error != NULL) {
        return;
    }
    if (*tracker == NULL) {
        memory_walk_start(memory, tracker, ns);
    }
    if (!ledger_walk_instr(memory->walk, (guint)site->call, (guint)site->instr, error)) {
        return;
    }
    const int64_t *now = ledger_walk_held(memory->walk);
    for (int tag = 0; tag < N_MEM_TAGS; tag++) {
        if (now[tag] != memory->held[tag]) {
            tracker_add(*tracker, tag, now[tag] - memory->held[tag], ns, 0);
            memory->held[tag] = now[tag];
        }
    }
}

static void on_issued(void *self, const StepSite *site, SimTime host_ns)
{
    Recorder *recorder = self;
    RunRecord *record = recorder->record;
    gint32 c = site->rank_class;
    if (!record->shown[c]) {
        return;
    }
    record->begin_ns = MIN(record->begin_ns, host_ns);
    memory_walk_step(&recorder->walks[c], &record->memory[c], site, host_ns, &recorder->error);
    if (c == recorder->fullest_class) {
        memory_walk_step(&recorder->fullest, &record->fullest_memory, site, host_ns, &recorder->error);
    }
}

/* Counts the members of a meeting, which are told of one after the other: the last one is whom the others waited for. */
static void note_meeting(Recorder *recorder, const RecordKernel *kernel)
{
    GArray *kernels = recorder->record->kernels;
    if (recorder->n_told == 0) {
        recorder->first_kernel = kernels->len;
    }
    if (recorder->record->shown[kernel->site.rank_class]) {
        g_array_append_vals(kernels, kernel, 1);
    }
    if (++recorder->n_told < recorder->n_classes) {
        return;
    }
    for (guint i = recorder->first_kernel; i < kernels->len; i++) {
        g_array_index(kernels, RecordKernel, i).last_class = kernel->site.rank_class;
    }
    recorder->n_told = 0;
    recorder->n_meetings++;
}

static void on_ran(void *self, const StepSite *site, SimTime start_ns, SimTime end_ns)
{
    Recorder *recorder = self;
    RunRecord *record = recorder->record;
    const Instr *instr = run_record_instr(record, site);
    RecordKernel kernel = {*site, start_ns, end_ns, -1, -1};
    if (record->shown[site->rank_class]) {
        record->begin_ns = MIN(record->begin_ns, start_ns);
    }
    if (instr->kind == INSTR_COLLECTIVE && step_group_meets((Program *const *)(void *)recorder->record->programs->pdata, recorder->n_classes, (GroupKind)instr->group)) {
        kernel.meeting = recorder->n_meetings;
        note_meeting(recorder, &kernel);
    } else if (record->shown[site->rank_class]) {
        g_array_append_val(record->kernels, kernel);
    }
}

static void on_marked(void *self, gint32 rank_class, Phase phase, SimTime ns)
{
    Recorder *recorder = self;
    SimTime before_ns = recorder->phase_ns[rank_class];
    int64_t first_hidden, n_hidden = run_record_hidden(recorder->record, &first_hidden), passed = recorder->n_backward[rank_class];
    gint32 micro_batch = phase == PHASE_OPTIMIZER ? -1 : (gint32)(passed + (passed >= first_hidden + (phase == PHASE_FORWARD) ? n_hidden : 0));
    RecordPhase entry = {rank_class, phase, micro_batch, before_ns, ns};
    recorder->n_backward[rank_class] += phase == PHASE_BACKWARD ? 1 : 0;
    recorder->phase_ns[rank_class] = ns;
    if (!recorder->record->shown[rank_class]) {
        return;
    }
    recorder->record->begin_ns = MIN(recorder->record->begin_ns, ns);
    if (before_ns >= 0) {
        g_array_append_val(recorder->record->phases, entry);
    }
}

/* Kernels and collectives of one class that a record would hold, and their time alone. */
static void class_size(const RunRecord *record, gint32 c, int64_t *ret_n, SimTime *ret_ns)
{
    const Program *program = run_record_program(record, c);
    *ret_n = *ret_ns = 0;
    for (guint i = 0; i < program->calls->len; i++) {
        const Segment *segment = program_segment(program, g_array_index(program->calls, Call, i).segment);
        int64_t times = MIN(program_call_times(program, i), SHOWN_REPEATS);
        for (guint k = 0; k < segment->instrs->len; k++) {
            const Instr *instr = &g_array_index(segment->instrs, Instr, k);
            gboolean runs = instr->kind == INSTR_COMPUTE || instr->kind == INSTR_COLLECTIVE;
            *ret_n += runs ? times : 0;
            *ret_ns += runs ? times * program_instr_ns(&program->clock, instr) : 0;
        }
    }
}

static void choose_classes(Recorder *recorder, int64_t room)
{
    RunRecord *record = recorder->record;
    gint32 n = (gint32)recorder->n_classes, longest = 0;
    SimTime longest_ns = -1;
    for (gint32 c = 0; c < n; c++) {
        int64_t size;
        SimTime ns;
        class_size(record, c, &size, &ns);
        longest = ns > longest_ns ? c : longest;
        longest_ns = MAX(ns, longest_ns);
    }
    for (gint32 i = 0; i < n + 3; i++) {
        gint32 c = i == 0 ? run_record_slowest(record) : i == 1 ? recorder->fullest_class : i == 2 ? longest : i - 3;
        int64_t size;
        SimTime ns;
        class_size(record, c, &size, &ns);
        if (!record->shown[c] && (i < 2 || size <= room)) {
            record->shown[c] = TRUE;
            room -= size;
            memory_walk_init(&recorder->walks[c], run_record_program(record, c));
        }
    }
}

static gboolean recorder_run(Recorder *recorder, const Plan *plan, GError **error)
{
    StepObserver observer = {on_issued, on_ran, on_marked, recorder};
    StepTimes times;
    void *programs = recorder->record->programs->pdata;
    for (int64_t c = 0; c < recorder->n_classes; c++) {
        recorder->phase_ns[c] = -1;
    }
    recorder->record->n_repeats = run_record_program(recorder->record, 0)->repeat.times;
    recorder->record->n_shown_repeats = MIN(recorder->record->n_repeats, SHOWN_REPEATS);
    if (!step_observe(plan, programs, recorder->n_classes, SHOWN_REPEATS, &observer, &times, error)) {
        return FALSE;
    }
    if (recorder->error != NULL) {
        g_propagate_error(error, g_steal_pointer(&recorder->error));
        return FALSE;
    }
    for (int i = 0; i < N_GROUP_KINDS * N_COLLS; i++) {
        guint32 meets = step_network_meets(&times, (GroupKind)(i / N_COLLS), (CollKind)(i % N_COLLS));
        recorder->record->meets[i / N_COLLS][i % N_COLLS] = (guint8)meets;
    }
    return TRUE;
}

/* The memory of the fullest rank along with the host that the result's times are those of (peak-time.h). */
typedef struct Telling {
    MemoryWalk memory;
    RunRecord *record;
    GError *error;
} Telling;

static void tell_issued(void *self, const StepSite *site, SimTime host_ns)
{
    Telling *telling = self;
    RunRecord *record = telling->record;
    record->told_begin_ns = MIN(record->told_begin_ns, host_ns);
    if (site->rank_class == 0) {
        memory_walk_step(&telling->memory, &record->told_memory, site, host_ns, &telling->error);
    }
}

static void tell_ran(void *self, const StepSite *site, SimTime start_ns, SimTime end_ns)
{
    RunRecord *record = ((Telling *)self)->record;
    (void)site;
    (void)end_ns;
    record->told_begin_ns = MIN(record->told_begin_ns, start_ns);
}

static void tell_marked(void *self, gint32 rank_class, Phase phase, SimTime ns)
{
    RunRecord *record = ((Telling *)self)->record;
    (void)rank_class;
    (void)phase;
    record->told_begin_ns = MIN(record->told_begin_ns, ns);
}

static gboolean tell_memory(RunRecord *record, GError **error)
{
    Telling telling = {.record = record};
    StepObserver observer = {tell_issued, tell_ran, tell_marked, &telling};
    StepTimes times;
    GPtrArray *programs = record->groups.programs;
    record->told_begin_ns = G_MAXINT64;
    memory_walk_init(&telling.memory, record->fullest.program);
    gboolean ok = step_observe(&record->plan, (Program *const *)(void *)programs->pdata, programs->len, SHOWN_REPEATS, &observer, &times, error);
    ledger_walk_free(telling.memory.walk);
    if (telling.error != NULL) {
        g_clear_error(error);
        g_propagate_error(error, telling.error);
        return FALSE;
    }
    return ok;
}

RunRecord *run_record_new(const Plan *plan, const Result *result, int64_t n_kernels_max, GError **error)
{
    g_autoptr(RunRecord) record = g_new0(RunRecord, 1);
    record->plan = trials_settle(plan, result);
    record->graphs = lower_graphs(&record->plan);
    record->programs = g_ptr_array_new_with_free_func(program_destroy);
    record->kernels = g_array_new(FALSE, FALSE, sizeof(RecordKernel));
    record->phases = g_array_new(FALSE, FALSE, sizeof(RecordPhase));
    record->begin_ns = G_MAXINT64;
    if (!run_groups_init(&record->groups, NULL, &record->plan, record->graphs, error) ||
        !run_groups_memory(&record->groups, -1, &record->fullest, error)) {
        return NULL;
    }
    const Routing *routing = run_groups_slowest(&record->groups, &record->slowest_rank);
    int64_t n = routing != NULL ? plan->ep : 1;
    g_autofree MemoryWalk *walks = g_new0(MemoryWalk, (gsize)n);
    g_autofree SimTime *phase_ns = g_new0(SimTime, (gsize)n);
    g_autofree gint32 *n_backward = g_new0(gint32, (gsize)n);
    Recorder recorder = {
        .record = record, .n_classes = n, .walks = walks, .phase_ns = phase_ns, .n_backward = n_backward};
    record->shown = g_new0(gboolean, (gsize)n);
    record->memory = g_new0(Tracker *, (gsize)n);
    record->listed = lower_plan_described(&record->plan, record->graphs, routing, routing != NULL ? LOWER_HOTTEST : 0);
    for (int64_t c = 0; c < n; c++) {
        g_ptr_array_add(record->programs, lower_plan_described(&record->plan, record->graphs, routing, c));
    }
    recorder.fullest_class = (gint32)(record->fullest.rank % n);
    memory_walk_init(&recorder.fullest, record->fullest.program);
    choose_classes(&recorder, n_kernels_max);
    gboolean ok = recorder_run(&recorder, &record->plan, error) && tell_memory(record, error);
    for (int64_t c = 0; c < n; c++) {
        ledger_walk_free(walks[c].walk);
    }
    ledger_walk_free(recorder.fullest.walk);
    return ok ? g_steal_pointer(&record) : NULL;
}

void run_record_free(RunRecord *record)
{
    if (record == NULL) {
        return;
    }
    for (guint c = 0; record->memory != NULL && c < record->programs->len; c++) {
        tracker_free(record->memory[c]);
    }
    program_free(record->listed);
    tracker_free(record->fullest_memory);
    tracker_free(record->told_memory);
    group_memory_clear(&record->fullest);
    g_ptr_array_unref(record->programs);
    if (record->groups.routings != NULL) {
        run_groups_clear(&record->groups);
    }
    model_graph_free(record->graphs);
    g_array_unref(record->kernels);
    g_array_unref(record->phases);
    g_free(record->memory);
    g_free(record->shown);
    g_free(record);
}
