#include "workloads/run/step.h"

#include <string.h>

#include "hw/host-link.h"
#include "sim/base/error.h"
#include "sim/des/engine.h"
#include "sim/des/share.h"
#include "sim/des/span.h"
#include "sim/des/stream.h"
#include "workloads/run/step-memo.h"

/* The host of one class: where it is in the program. */
typedef struct Host {
    const Program *program;
    guint call, instr;
    int64_t n_repeats; /* times that the repeated block has been run through in this round */
    int round; /* 0 = the step before, which brings host and device into their steady distance; 1 = the step measured */
    SimTime now_ns;
    int first_stream;
    int *tokens; /* by program token: the latest record, or -1 */
    gboolean waits;
    int n_steps; /* whose optimizer has ended; counted for an observer */
} Host;

/* End of a phase. */
typedef struct Mark {
    Phase phase;
    SimTime ns;
} Mark;

/* Who shares what with whom on a device. */
typedef struct Sharing {
    const Device *device;
    HostLink link;
} Sharing;

typedef struct Step {
    const Device *device;
    SimEngine *engine;
    Streams *streams;
    Host *hosts;
    int64_t n_classes;
    int groups[N_GROUP_KINDS][N_STREAMS]; /* rendezvous of all classes; -1 = a class alone */
    SpanLog *log;                         /* observed class */
    StepTimes *times;
    SimTime start_ns; /* of the measured step; -1 before it */
    SimTime mark_ns;  /* end of the phase before */
    int64_t n_repeats, n_skipped; /* of the repeated block: run through, and left out because they are alike */
    GArray *marks;    /* Mark: ends of phases of the measured step */
    const StepObserver *observer; /* NULL: nobody asks */
    GArray *sites;                /* StepSite: of works under observation, by the value of their tags */
    gboolean ok;
} Step;

enum { N_ROUNDS = 2 };

/* Lane of the log for when the network is crowded, behind the streams of the observed class: nobody else logs there. */
enum { LANE_CROWDED = N_STREAMS };

/* Tags of stream items: what a callback is for. */
enum { TAG_WORK, TAG_SYNC, TAG_MARK };

static uint64_t tag_of(int what, int64_t value)
{
    return (uint64_t)value << 2 | (uint64_t)what;
}

/* A measured rate; where it was not measured, or_else. */
static double rate_or(double rate, double or_else)
{
    return rate > 0 ? rate : or_else;
}

/*
 * Rates of kernels that run at once, as measured between two GPUs (hw/calibration/h200/overlap_2gpu.csv; overlap_pairs_2gpu.csv
 * for several collectives): computing and communicating kernels take SMs and bandwidth from each other. The blocks of a grouped
 * product fill the SMs and know their tiles beforehand: those that wait for a collective's SM finish after it, and a collective
 * waits for theirs. Casts beside the compute stream share the memory's bandwidth with memory-bound kernels. A host copy moves
 * far less than the memory can; what it shares is its link.
 */
static double share_rate(const void *data, guint32 running, int cls)
{
    const Sharing *sharing = data;
    const Device *device = sharing->device;
    const HostLink *link = &sharing->link;
    gboolean net = running >> SHARE_NET & 1u, comm = net || (running >> SHARE_COMM & 1u), side = running >> SHARE_SIDE & 1u;
    gboolean out = running >> SHARE_HOST_OUT & 1u, in = running >> SHARE_HOST_IN & 1u, copy = out || in;
    gboolean stream = running >> SHARE_STREAM & 1u, grouped = running >> SHARE_GROUPED & 1u, several = running >> SHARE_COMMS & 1u;
    gboolean dense = grouped || (running & (1u << SHARE_DENSE | 1u << SHARE_ATTENTION)) != 0;
    double under = device->compute_rate_under_comm, of_one = device->comm_rate_under_compute;
    double more = several ? rate_or(device->compute_rate_under_comms, under) / under : 1;
    double each = several ? rate_or(device->comms_rate_under_compute, of_one) / of_one : 1;
    double beside = (side ? under : 1) * (copy ? device->compute_rate_under_copy : 1) * (comm ? more : 1);
    double of_comm = grouped ? device->comm_rate_under_grouped * each : stream || dense ? of_one * each : 1;
    switch ((ShareClass)cls) {
    case SHARE_DENSE:
        return (comm ? under : 1) * beside;
    case SHARE_GROUPED:
        return (comm ? device->grouped_rate_under_comm : 1) * beside;
    case SHARE_ATTENTION:
        return (comm ? device->attention_rate_under_comm : 1) * beside;
    case SHARE_STREAM:
        return (comm ? under * more : 1) * (side ? 0.5 : 1);
    case SHARE_SIDE:
        return stream ? 0.5 : dense ? under : 1;
    case SHARE_COMM:
        return of_comm;
    case SHARE_NET:
        return of_comm * (copy ? link->rate_of_net : 1);
    case SHARE_HOST_OUT:
    case SHARE_HOST_IN:
        return MIN(out && in ? link->duplex_rate : link->alone_rate, net ? link->net_rate : 1);
    case SHARE_COMMS:
    case N_SHARE_CLASSES:
    default:
        return 1;
    }
}

/* Collectives take SMs and memory from computation, but not from each other: they meet on links. */
static ShareLaw *law_of(const Plan *plan)
{
    Sharing sharing = {plan->cluster->device, host_link_of(plan->cluster, plan->copies_yield)};
    ShareLaw *law = share_law_new(N_SHARE_CLASSES, share_rate, &sharing);
    share_law_keep_apart(law, 1u << SHARE_COMM | 1u << SHARE_NET, SHARE_COMMS);
    return law;
}

/* Where a host is: at the instruction that it took last. */
static StepSite host_site(const Step *step, const Host *host)
{
    return (StepSite){(gint32)(host - step->hosts), (gint32)host->call, (gint32)host->instr - 1, (gint32)host->n_repeats};
}

/* Tag of a work: 0, or under observation 1 + its site. */
static uint64_t work_tag(Step *step, const Host *host)
{
    if (step->observer == NULL || host->round < N_ROUNDS - 1) {
        return tag_of(TAG_WORK, 0);
    }
    StepSite site = host_site(step, host);
    g_array_append_val(step->sites, site);
    return tag_of(TAG_WORK, step->sites->len);
}

static void push_compute(Step *step, Host *host, const Instr *instr)
{
    SimTime device_ns = program_instr_ns(&host->program->clock, instr);
    SimTime one_host = instr->host_ns / instr->n_launches, one_device = device_ns / instr->n_launches;
    SimTime first = host->now_ns + one_host;
    SimTime last = host->now_ns + instr->host_ns;
    StreamWork work = {.duration_ns = device_ns,
                       .not_before_ns = MAX(first, last + one_device - device_ns),
                       .cls = instr->share,
                       .load = instr->load,
                       .tag = work_tag(step, host)};
    host->now_ns = last;
    if (instr->kind == INSTR_COLLECTIVE && step->groups[instr->group][instr->stream] >= 0) {
        streams_push_join(step->streams, host->first_stream + instr->stream, step->groups[instr->group][instr->stream],
                          (guint32)instr->coll, &work);
    } else {
        streams_push_work(step->streams, host->first_stream + instr->stream, &work);
    }
}

/* Issues one instruction; FALSE when the host has to wait for the device. */
static gboolean host_issue(Step *step, Host *host, const Call *call, const Instr *instr)
{
    int stream = host->first_stream + instr->stream;
    gint32 token;
    switch ((InstrKind)instr->kind) {
    case INSTR_COMPUTE:
    case INSTR_COLLECTIVE:
        push_compute(step, host, instr);
        return TRUE;
    case INSTR_RECORD:
        token = program_resolve(call, instr->place);
        host->tokens[token] = streams_add_tokens(step->streams, 1);
        streams_push_record(step->streams, stream, host->tokens[token]);
        return TRUE;
    case INSTR_WAIT:
        token = program_resolve(call, instr->place);
        if (host->tokens[token] >= 0) {
            streams_push_wait(step->streams, stream, host->tokens[token]);
        }
        return TRUE;
    case INSTR_HOST:
        host->now_ns += instr->host_ns;
        return TRUE;
    case INSTR_HOST_SYNC:
        streams_push_call(step->streams, stream, tag_of(TAG_SYNC, instr->host_ns));
        return FALSE;
    case INSTR_MARK:
        streams_push_call(step->streams, stream, tag_of(TAG_MARK, instr->phase));
        return TRUE;
    case INSTR_ALLOC:
    case INSTR_FREE:
    case INSTR_MOVE:
    case INSTR_VALUE:
    default:
        return TRUE;
    }
}

/* The host goes on until it has to wait or has issued everything. */
static void host_run(Step *step, Host *host)
{
    const GArray *calls = host->program->calls;
    host->waits = FALSE;
    while (!host->waits && host->round < N_ROUNDS) {
        const Call *call = &g_array_index(calls, Call, host->call);
        const GArray *instrs = program_segment(host->program, call->segment)->instrs;
        while (!host->waits && host->instr < instrs->len) {
            const Instr *instr = &g_array_index(instrs, Instr, host->instr++);
            if (step->observer != NULL && host->round == N_ROUNDS - 1) {
                StepSite site = host_site(step, host);
                step->observer->issued(step->observer->self, &site, host->now_ns);
            }
            host->waits = !host_issue(step, host, call, instr);
        }
        if (host->instr == instrs->len) {
            host->instr = 0;
            host->call = program_next_call(host->program, host->call, step->n_repeats, &host->n_repeats);
        }
        if (host->call == calls->len) {
            host->call = 0;
            host->n_repeats = 0;
            host->round++;
        }
    }
}

/* Tells the observer of a work, or of the end of a phase: from that of the step before on. */
static void tell(const Step *step, Host *host, int what, int64_t value, SimTime start_ns, SimTime end_ns)
{
    const StepObserver *observer = step->observer;
    if (what == TAG_WORK && value > 0) {
        observer->ran(observer->self, &g_array_index(step->sites, StepSite, value - 1), start_ns, end_ns);
    } else if (what == TAG_MARK) {
        host->n_steps += value == PHASE_OPTIMIZER ? 1 : 0;
        if (host->n_steps > 0) {
            observer->marked(observer->self, (gint32)(host - step->hosts), (Phase)value, end_ns);
        }
    }
}

static void on_done(void *self, int stream, uint64_t tag, SimTime start_ns, SimTime end_ns)
{
    Step *step = self;
    int64_t class = stream / N_STREAMS;
    Host *host = &step->hosts[class];
    int what = (int)(tag & 3);
    int64_t value = (int64_t)(tag >> 2);
    if (step->observer != NULL) {
        tell(step, host, what, value, start_ns, end_ns);
    }
    if (what == TAG_WORK && class == 0 && step->start_ns >= 0 && end_ns > step->start_ns) {
        Span span = {MAX(start_ns, step->start_ns), end_ns, (uint64_t)value, stream};
        span_log_add(step->log, &span);
    } else if (what == TAG_SYNC) {
        host->now_ns = MAX(host->now_ns, end_ns) + value;
        host_run(step, host);
    } else if (what == TAG_MARK && class == 0) {
        step->times->phase_ns[value] += end_ns - step->mark_ns;
        step->mark_ns = end_ns;
        Mark mark = {(Phase)value, end_ns};
        g_array_append_val(step->marks, mark);
        if (value == PHASE_OPTIMIZER && step->start_ns < 0) {
            step->start_ns = end_ns;
            memset(step->times->phase_ns, 0, sizeof step->times->phase_ns);
            g_array_set_size(step->marks, 0);
        }
    }
}

static gboolean is_compute_lane(const void *data, int lane)
{
    (void)data;
    return lane == STREAM_COMPUTE;
}

static gboolean is_comm_lane(const void *data, int lane)
{
    (void)data;
    return lane == STREAM_GATHER || lane == STREAM_REDUCE || lane == STREAM_ALL_TO_ALL;
}

static gboolean is_work_lane(const void *data, int lane)
{
    return is_compute_lane(data, lane) || is_comm_lane(data, lane);
}

static gboolean is_copy_lane(const void *data, int lane)
{
    (void)data;
    return lane == STREAM_COPY_OUT || lane == STREAM_COPY_IN;
}

static gboolean is_stream_lane(const void *data, int lane)
{
    (void)data;
    return lane < N_STREAMS;
}

static gboolean is_crowded_lane(const void *data, int lane)
{
    (void)data;
    return lane == LANE_CROWDED;
}

gboolean step_group_meets(Program *const *programs, int64_t n_classes, GroupKind group)
{
    gboolean one_group = n_classes < 2 || programs[0]->ep_group == programs[1]->ep_group;
    return n_classes > 1 && (group == GROUP_DENSE || group == GROUP_WORLD || (group == GROUP_EP) == one_group);
}

static void step_build(Step *step, Program *const *programs, const ShareLaw *law)
{
    for (int64_t c = 0; c < step->n_classes; c++) {
        Host *host = &step->hosts[c];
        int device = streams_add_device(step->streams, law);
        host->program = programs[c];
        host->first_stream = (int)c * N_STREAMS;
        host->tokens = g_new(int, programs[c]->n_tokens);
        for (int t = 0; t < programs[c]->n_tokens; t++) {
            host->tokens[t] = -1;
        }
        for (int s = 0; s < N_STREAMS; s++) {
            g_autofree char *name = g_strdup_printf("class %d %s", (int)c, program_stream_name((StreamId)s));
            int stream = streams_add(step->streams, name, device);
            g_assert(stream == host->first_stream + s);
        }
    }
    for (int g = 0; g < N_GROUP_KINDS; g++) {
        gboolean meets = step_group_meets(programs, step->n_classes, (GroupKind)g);
        for (int s = 0; s < N_STREAMS; s++) {
            step->groups[g][s] = meets ? streams_add_group(step->streams, (int)step->n_classes) : -1;
        }
    }
}

/* What nothing hides between two moments. */
typedef struct Exposed {
    SimTime comm_ns, copy_ns, host_ns, crowded_ns;
} Exposed;

static Exposed exposed_between(const Step *step, SimTime from_ns, SimTime to_ns)
{
    g_autoptr(SpanLog) window = span_log_new();
    for (size_t i = 0; i < span_log_length(step->log); i++) {
        Span span = *span_log_get(step->log, i);
        span.start_ns = MAX(span.start_ns, from_ns);
        span.end_ns = MIN(span.end_ns, to_ns);
        if (span.end_ns > span.start_ns) {
            span_log_add(window, &span);
        }
    }
    return (Exposed){span_log_exposed_ns(window, is_comm_lane, is_compute_lane, NULL),
                     span_log_exposed_ns(window, is_copy_lane, is_work_lane, NULL),
                     MAX(0, to_ns - from_ns - span_log_busy_ns(window, is_stream_lane, NULL)),
                     span_log_busy_ns(window, is_crowded_lane, NULL)};
}

static void add_exposed(StepTimes *times, const Exposed *exposed, int64_t n)
{
    times->exposed_comm_ns += n * exposed->comm_ns;
    times->exposed_copy_ns += n * exposed->copy_ns;
    times->exposed_host_ns += n * exposed->host_ns;
    times->crowded_ns += n * exposed->crowded_ns;
}

/* Ends of phases that calls of the first program mark. */
static guint n_marks(const Program *program, guint first, guint end)
{
    guint n = 0;
    for (guint c = first; c < end; c++) {
        const Segment *segment = program_segment(program, g_array_index(program->calls, Call, c).segment);
        for (guint i = 0; i < segment->instrs->len; i++) {
            n += g_array_index(segment->instrs, Instr, i).kind == INSTR_MARK;
        }
    }
    return n;
}

/*
 * Adds the repetitions that were left out. Each takes as long as the last one did, if that one took as long as the one
 * before it and hid as much: then host and streams stand as they stood, and the rest follows. FALSE when they have not
 * settled; what is added is then right to the jitter of one repetition.
 */
static gboolean add_skipped(Step *step)
{
    StepTimes *times = step->times;
    const Program *program = step->hosts[0].program;
    const CallRepeat *repeat = &program->repeat;
    if (step->n_skipped == 0) {
        return TRUE;
    }
    guint n = n_marks(program, repeat->first, repeat->first + repeat->n);
    guint n_after = n_marks(program, repeat->first + repeat->n, program->calls->len);
    g_assert(step->marks->len > 2 * n + n_after);
    const Mark *last = &g_array_index(step->marks, Mark, step->marks->len - 1 - n_after) - n; /* before the last repetition */
    Exposed exposed = exposed_between(step, last->ns, last[n].ns), before = exposed_between(step, (last - n)->ns, last->ns);
    gboolean settled = memcmp(&exposed, &before, sizeof exposed) == 0;
    for (guint i = 1; i <= n; i++) {
        const Mark *mark = &last[i];
        SimTime ns = mark->ns - mark[-1].ns;
        settled = settled && ns == (mark - n)->ns - (mark - n - 1)->ns;
        times->phase_ns[mark->phase] += step->n_skipped * ns;
    }
    times->step_ns += step->n_skipped * (last[n].ns - last->ns);
    add_exposed(times, &exposed, step->n_skipped);
    return settled;
}

static gboolean step_finish(Step *step)
{
    StepTimes *times = step->times;
    times->step_ns = step->mark_ns - step->start_ns;
    Exposed exposed = exposed_between(step, step->start_ns, step->mark_ns);
    add_exposed(times, &exposed, 1);
    times->n_events = sim_engine_n_events(step->engine);
    return add_skipped(step);
}

/* Some ten hours: a sum of a step's works then stays far inside of SimTime. */
static const SimTime WORK_NS_MAX = (SimTime)1 << 45;

/* Micro-batches beyond this are multiplied in nanoseconds and bytes that have to be looked at first: 2^58 ns are nine years. */
enum { REPEATS_PLAIN = 1 << 13 };
static const double SUM_MAX = 0x1p62;

static gboolean check_sums(StepMemo *memo, const Program *program, const Plan *plan, GError **error)
{
    double sum = 0;
    if (program->repeat.times <= REPEATS_PLAIN) {
        return TRUE;
    }
    for (guint c = 0; c < program->calls->len; c++) {
        Segment *segment = program_segment(program, g_array_index(program->calls, Call, c).segment);
        sum += (double)program_call_times(program, c) * step_counts(memo, segment, &program->clock)->most;
    }
    if (sum <= SUM_MAX) {
        return TRUE;
    }
    plan_fail(plan, "workload.global_batch", error,
              "%" G_GINT64_FORMAT " micro-batches per rank make a step of more than nine years, or of more bytes than are counted; lower it",
              plan->n_micro_batches);
    return FALSE;
}

static gboolean check_longest(const SegmentCounts *counts, const Plan *plan, GError **error)
{
    if (counts->longest_ns <= WORK_NS_MAX) {
        return TRUE;
    }
    plan_fail(plan, "workload", error, "one %s takes more than ten hours; lower seq_len or micro_batch", program_label_name(counts->longest_label));
    return FALSE;
}

static gboolean check_durations(StepMemo *memo, const Program *program, const Plan *plan, GError **error)
{
    g_autofree int64_t *n_calls = step_calls_beside_runs(program);
    for (guint r = 0; r < program->runs->len; r++) {
        if (!check_longest(&step_run_facts(memo, program, &g_array_index(program->runs, ProgramRun, r))->counts, plan, error)) {
            return FALSE;
        }
    }
    for (guint s = 0; s < program->segments->len; s++) {
        if (n_calls[s] > 0 && !check_longest(step_counts(memo, program_segment(program, (int)s), &program->clock), plan, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

/* One simulation with n_repeats of the repeated block. ret_settled says whether the ones left out are accounted for. */
static gboolean step_try(const Plan *plan, Program *const *programs, int64_t n_classes, int64_t n_repeats,
                         const StepObserver *observer, StepTimes *ret_times, gboolean *ret_settled, GError **error)
{
    Step step = {
        .device = plan->cluster->device, .n_classes = n_classes, .times = ret_times, .start_ns = -1, .observer = observer};
    StreamCallbacks callbacks = {.done = on_done, .self = &step};
    g_autoptr(ShareLaw) law = law_of(plan);
    g_autoptr(SimEngine) engine = sim_engine_new();
    g_autoptr(SpanLog) log = span_log_new();
    g_autoptr(Streams) streams = streams_new(engine, &callbacks);
    g_autoptr(GArray) marks = g_array_new(FALSE, FALSE, sizeof(Mark));
    g_autoptr(GArray) sites = g_array_new(FALSE, FALSE, sizeof(StepSite));
    g_autofree Host *hosts = g_new0(Host, n_classes);
    *ret_times = (StepTimes){0};
    step.engine = engine;
    step.streams = streams;
    step.log = log;
    step.marks = marks;
    step.sites = sites;
    step.hosts = hosts;
    step.n_repeats = n_repeats;
    step.n_skipped = programs[0]->repeat.times - n_repeats;
    step_build(&step, programs, law);
    streams_log_crowded(streams, 0, log, LANE_CROWDED);
    for (int64_t c = 0; c < n_classes; c++) {
        host_run(&step, &hosts[c]);
    }
    gboolean ok = sim_engine_run(engine, error);
    *ret_settled = ok && step_finish(&step);
    g_autoptr(StepMemo) nothing_known = step_memo_new();
    step_count(nothing_known, programs[0], ret_times);
    for (int64_t c = 0; c < n_classes; c++) {
        g_free(hosts[c].tokens);
    }
    return ok;
}

/* Repetitions of alike micro-batches that are simulated: few if they settle at once, more if not. */
static const int64_t repeat_trials[] = {4, 16, 64};

gboolean step_run_unfolded(const Plan *plan, Program *const *programs, int64_t n_classes, StepTimes *ret_times, GError **error)
{
    gboolean settled;
    return step_try(plan, programs, n_classes, programs[0]->repeat.times, NULL, ret_times, &settled, error);
}

gboolean step_observe(const Plan *plan, Program *const *programs, int64_t n_classes, int64_t n_repeats,
                      const StepObserver *observer, StepTimes *ret_times, GError **error)
{
    gboolean settled;
    int64_t n = CLAMP(n_repeats, MIN(2, programs[0]->repeat.times), programs[0]->repeat.times);
    return step_try(plan, programs, n_classes, n, observer, ret_times, &settled, error);
}

/* Simulated with every event, on one device per class; as many repetitions of alike micro-batches as it takes. */
static gboolean run_streams(const Plan *plan, Program *const *programs, int64_t n_classes, StepTimes *ret_times, GError **error)
{
    gboolean settled = FALSE;
    for (size_t i = 0; i < G_N_ELEMENTS(repeat_trials) && !settled; i++) {
        int64_t n_repeats = MIN(repeat_trials[i], programs[0]->repeat.times);
        if (!step_try(plan, programs, n_classes, n_repeats, NULL, ret_times, &settled, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

gboolean step_run_memo(StepMemo *memo, const Plan *plan, Program *const *programs, int64_t n_classes, StepTimes *ret_times,
                       GError **error)
{
    gboolean settled = FALSE;
    for (int64_t c = 0; c < n_classes; c++) {
        if (!check_durations(memo, programs[c], plan, error) || !check_sums(memo, programs[c], plan, error)) {
            return FALSE;
        }
    }
    if (n_classes > 1) {
        return run_streams(plan, programs, n_classes, ret_times, error);
    }
    if (memo->cluster != plan->cluster || memo->copies_yield != plan->copies_yield) {
        share_law_free(memo->law);
        cluster_free(memo->cluster);
        memo->cluster = cluster_ref(plan->cluster);
        memo->copies_yield = plan->copies_yield;
        memo->law = law_of(plan);
        memo->numbered_law = NULL; /* it may stand where the other one stood */
    }
    *ret_times = (StepTimes){0};
    if (!step_fold(memo, memo->law, programs[0], ret_times, &settled) || !settled) {
        return run_streams(plan, programs, n_classes, ret_times, error); /* which says what waits for what, if it blocks */
    }
    step_count(memo, programs[0], ret_times);
    return TRUE;
}

gboolean step_run(const Plan *plan, Program *const *programs, int64_t n_classes, StepTimes *ret_times, GError **error)
{
    g_autoptr(StepMemo) memo = step_memo_new();
    return step_run_memo(memo, plan, programs, n_classes, ret_times, error);
}
