#include "reports/cli/trace.h"

#include <inttypes.h>
#include <jansson.h>

#include "sim/base/json-read.h"
#include "workloads/run/result.h"
#include "workloads/run/run.h"

/* Threads of a process: 0 is taken by the kernel in traces of systems. */
enum { TRACK_PHASES = 1, TRACK_STREAMS = 2 };

/* A trace being written. */
typedef struct Writer {
    const Plan *plan;
    const RunRecord *record;
    GString *out;
    gboolean follows;   /* an event stands before */
    GHashTable *tails;  /* Instr -> what all events of it say alike; looked up only */
    guint32 *streams;   /* by class: bits of the streams that have kernels */
    uint64_t n_arrows;
} Writer;

static void append_json_string(GString *out, const char *text)
{
    g_autoptr(json_t) value = json_string(text);
    g_autofree char *quoted = json_dumps(value, JSON_ENCODE_ANY);
    g_string_append(out, quoted);
}

/* A field of "args" behind others. */
static void append_text_arg(GString *out, const char *key, const char *text)
{
    g_string_append_printf(out, ",\"%s\":", key);
    append_json_string(out, text);
}

static void append_int_arg(GString *out, const char *key, int64_t value)
{
    g_string_append_printf(out, ",\"%s\":%" PRId64, key, value);
}

/* Nanoseconds as microseconds, exactly. */
static void append_us(GString *out, const char *key, SimTime ns)
{
    g_string_append_printf(out, ",\"%s\":%" PRId64 ".%03d", key, ns / 1000, (int)(ns % 1000));
}

static void event_start(Writer *writer, const char *kind, gint32 rank_class, int track)
{
    g_string_append_printf(writer->out, "%s{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d", writer->follows ? ",\n" : "", kind,
                           rank_class + 1, track);
    writer->follows = TRUE;
}

static void event_at(Writer *writer, SimTime ns)
{
    append_us(writer->out, "ts", ns - writer->record->begin_ns);
    g_string_append_c(writer->out, '4'); /* tenths: readers that multiply by 1000 and cut then get this nanosecond */
}

/* ---- names of processes and tracks ---- */

/* A metadata event: the name, or a number that puts it in order. */
static void name_event(Writer *writer, gint32 rank_class, int track, const char *what, const char *name)
{
    event_start(writer, "M", rank_class, track);
    g_string_append_printf(writer->out, ",\"name\":\"%s\",\"args\":{\"name\":", what);
    append_json_string(writer->out, name);
    g_string_append(writer->out, "}}");
}

static void order_event(Writer *writer, gint32 rank_class, int track, const char *what, int order)
{
    event_start(writer, "M", rank_class, track);
    g_string_append_printf(writer->out, ",\"name\":\"%s\",\"args\":{\"sort_index\":%d}}", what, order);
}

static void name_track(Writer *writer, gint32 rank_class, int track, const char *name)
{
    name_event(writer, rank_class, track, "thread_name", name);
    order_event(writer, rank_class, track, "thread_sort_index", track);
}

static void name_process(Writer *writer, gint32 rank_class, const char *name)
{
    name_event(writer, rank_class, 0, "process_name", name);
    order_event(writer, rank_class, 0, "process_sort_index", rank_class);
}

/* Whether the rank with the most memory belongs to another group than the one shown: a process of counters alone, behind. */
static gboolean fullest_is_elsewhere(const RunRecord *record)
{
    int64_t n = (int64_t)record->programs->len;
    return n > 1 && record->fullest.rank != run_record_rank(record, (gint32)(record->fullest.rank % n));
}

static void append_names(Writer *writer)
{
    const RunRecord *record = writer->record;
    for (gint32 c = 0; c < (gint32)record->programs->len; c++) {
        g_autofree char *name = record->programs->len == 1
                                    ? g_strdup_printf("every rank of %" PRId64, writer->plan->cluster->n_ranks)
                                    : g_strdup_printf("rank %" PRId64, run_record_rank(record, c));
        if (!record->shown[c]) {
            continue;
        }
        name_process(writer, c, name);
        name_track(writer, c, TRACK_PHASES, "phases");
        for (int s = 0; s < N_STREAMS; s++) {
            if (writer->streams[c] >> s & 1u) {
                name_track(writer, c, TRACK_STREAMS + s, program_stream_name((StreamId)s));
            }
        }
    }
    if (fullest_is_elsewhere(record)) {
        g_autofree char *name = g_strdup_printf("rank %" PRId64 ", the most memory", record->fullest.rank);
        name_process(writer, (gint32)record->programs->len, name);
    }
}

/* ---- kernels and collectives ---- */

static void append_work(GString *out, const Work *work, int64_t n_launches)
{
    append_text_arg(out, "dtype", dtype_name(work->dtype));
    g_autoptr(GString) shape = g_string_new(NULL);
    const struct {
        const char *name;
        int64_t size;
    } sizes[] = {{"m", work->m}, {"n", work->n}, {"k", work->k}, {"groups", work->n_groups}};
    for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
        if (sizes[i].size > 0) {
            g_string_append_printf(shape, "%s%s %" PRId64, shape->len > 0 ? ", " : "", sizes[i].name, sizes[i].size);
        }
    }
    append_text_arg(out, "shape", shape->str);
    append_int_arg(out, "read_bytes", work->read_bytes * n_launches);
    append_int_arg(out, "write_bytes", work->write_bytes * n_launches);
}

static void append_collective(const Writer *writer, GString *out, const Instr *instr)
{
    CollGroup group = run_group_geometry(writer->plan, (GroupKind)instr->group);
    g_autofree char *law = g_strdup_printf("%s, %s", coll_name((CollKind)instr->coll),
                                           group.per_domain >= group.n_ranks ? "scale-up" : "scale-out");
    append_text_arg(out, "law", law);
    append_text_arg(out, "group", program_group_name((GroupKind)instr->group));
    append_int_arg(out, "ranks", group.n_ranks);
    append_int_arg(out, "bytes", instr->bytes);
    append_text_arg(out, "network", result_network_name(writer->record->meets[instr->group][instr->coll]));
    for (int level = 0; level < N_NET_LEVELS; level++) {
        guint32 part = link_load_part(instr->load, level);
        if (part > 0) {
            g_string_append_printf(out, ",\"part of %s\":%.3f", net_level_name((NetLevel)level), (double)part / LINK_PART_ONE);
        }
    }
}

/* What every event of an instruction says alike: name, category, arguments; the arguments are left open. */
static char *instr_tail(const Writer *writer, const StepSite *site, const Instr *instr)
{
    const Segment *segment = run_record_segment(writer->record, site);
    const ProgramClock *clock = &run_record_program(writer->record, site->rank_class)->clock;
    GString *out = g_string_new(",\"name\":");
    gboolean is_collective = instr->kind == INSTR_COLLECTIVE;
    gboolean has_op = instr->op >= 0 && segment->graph != NULL;
    g_autofree char *collective = is_collective ? program_collective_name(instr) : NULL;
    append_json_string(out, is_collective ? collective
                            : has_op      ? graph_op(segment->graph, instr->op)->name
                                          : program_label_name(instr->label));
    append_text_arg(out, "cat", is_collective ? "collective" : "kernel");
    g_string_append(out, ",\"args\":{\"operator\":");
    append_json_string(out, program_label_name(instr->label));
    append_text_arg(out, "phase", program_phase_name((Phase)instr->phase));
    if (is_collective) {
        append_collective(writer, out, instr);
    } else if (instr->work >= 0) {
        append_text_arg(out, "law", program_law_name(segment, instr));
        append_work(out, &g_array_index(segment->works, Work, instr->work), instr->n_launches);
    } else {
        append_text_arg(out, "law", program_law_name(segment, instr));
        append_int_arg(out, "bytes", instr->bytes);
    }
    g_string_append_printf(out, ",\"flops\":%.17g", instr->flops);
    append_int_arg(out, "launches", instr->n_launches);
    append_us(out, "alone_us", program_instr_ns(clock, instr));
    append_text_arg(out, "evidence", evidence_name((Evidence)instr->evidence));
    return g_string_free(out, FALSE);
}

static const char *find_tail(Writer *writer, const StepSite *site)
{
    const Instr *instr = run_record_instr(writer->record, site);
    char *tail = g_hash_table_lookup(writer->tails, instr);
    if (tail == NULL) {
        tail = instr_tail(writer, site, instr);
        g_hash_table_insert(writer->tails, (void *)(uintptr_t)instr, tail);
    }
    return tail;
}

static int track_of(const Writer *writer, const StepSite *site)
{
    return TRACK_STREAMS + run_record_instr(writer->record, site)->stream;
}

static void append_kernel(Writer *writer, const RecordKernel *kernel)
{
    const RunRecord *record = writer->record;
    gint32 layer = run_record_call(record, &kernel->site)->layer;
    int64_t stands_for = run_record_stands_for(record, &kernel->site);
    event_start(writer, "X", kernel->site.rank_class, track_of(writer, &kernel->site));
    event_at(writer, kernel->start_ns);
    append_us(writer->out, "dur", kernel->end_ns - kernel->start_ns);
    g_string_append(writer->out, find_tail(writer, &kernel->site));
    if (layer >= 0) {
        append_int_arg(writer->out, "layer", layer);
    }
    append_int_arg(writer->out, "micro_batch", run_record_micro_batch(record, &kernel->site));
    if (stands_for > 1) {
        append_int_arg(writer->out, "stands_for", stands_for);
    }
    if (kernel->last_class >= 0) {
        append_int_arg(writer->out, "last_to_come", kernel->last_class);
    }
    g_string_append(writer->out, "}}");
}

/* One end of an arrow, bound to the slice that it lies in. */
static void append_arrow_end(Writer *writer, const char *kind, const RecordKernel *kernel)
{
    event_start(writer, kind, kernel->site.rank_class, track_of(writer, &kernel->site));
    event_at(writer, kernel->start_ns);
    g_string_append_printf(writer->out, ",\"id\":%" PRIu64 ",\"name\":\"came last\",\"cat\":\"collective\",\"bp\":\"e\"}",
                           writer->n_arrows);
}

/* Arrows of one meeting, whose members are [first, end): from the one that came last to each of the others. */
static void append_arrows(Writer *writer, const RecordKernel *first, const RecordKernel *end)
{
    const RecordKernel *last = NULL;
    for (const RecordKernel *kernel = first; kernel < end; kernel++) {
        last = kernel->site.rank_class == kernel->last_class ? kernel : last;
    }
    for (const RecordKernel *kernel = first; last != NULL && kernel < end; kernel++) {
        if (kernel != last) {
            writer->n_arrows++;
            append_arrow_end(writer, "s", last);
            append_arrow_end(writer, "f", kernel);
        }
    }
}

static void append_kernels(Writer *writer)
{
    const GArray *kernels = writer->record->kernels;
    const RecordKernel *all = (const RecordKernel *)(const void *)kernels->data;
    guint first = 0;
    for (guint i = 0; i < kernels->len; i++) {
        append_kernel(writer, &all[i]);
        first = all[i].meeting >= 0 && i > 0 && all[i - 1].meeting == all[i].meeting ? first : i;
        gboolean is_end = i + 1 == kernels->len || all[i + 1].meeting != all[i].meeting;
        if (all[i].meeting >= 0 && is_end) {
            append_arrows(writer, all + first, all + i + 1);
        }
    }
}

/* ---- phases and memory ---- */

/* Says which micro-batches are left out, at the end of the last one that is shown. */
static void append_fold(Writer *writer, const RecordPhase *phase)
{
    int64_t first, n = run_record_hidden(writer->record, &first);
    event_start(writer, "i", phase->rank_class, TRACK_PHASES);
    event_at(writer, phase->end_ns);
    g_string_append_printf(writer->out,
                           ",\"s\":\"p\",\"name\":\"micro-batches %" PRId64 " to %" PRId64 " are alike and not shown\"}",
                           first, first + n - 1);
}

static void append_phases(Writer *writer)
{
    const RunRecord *record = writer->record;
    int64_t first_hidden, n_hidden = run_record_hidden(record, &first_hidden);
    for (guint i = 0; i < record->phases->len; i++) {
        const RecordPhase *phase = &g_array_index(record->phases, RecordPhase, i);
        event_start(writer, "X", phase->rank_class, TRACK_PHASES);
        event_at(writer, phase->start_ns);
        append_us(writer->out, "dur", phase->end_ns - phase->start_ns);
        g_string_append_printf(writer->out, ",\"name\":\"%s\",\"cat\":\"phase\",\"args\":{", program_phase_name(phase->phase));
        if (phase->micro_batch >= 0) {
            g_string_append_printf(writer->out, "\"micro_batch\":%d", phase->micro_batch);
        }
        g_string_append(writer->out, "}}");
        if (phase->phase == PHASE_BACKWARD && n_hidden > 0 && phase->micro_batch == first_hidden - 1) {
            append_fold(writer, phase);
        }
    }
}

static void append_counter(Writer *writer, gint32 rank_class, SimTime ns, const char *name, int64_t bytes)
{
    event_start(writer, "C", rank_class, 0);
    event_at(writer, ns);
    g_string_append_printf(writer->out, ",\"name\":\"memory: %s\",\"args\":{\"bytes\":%" PRId64 "}}", name, bytes);
}

static void append_memory(Writer *writer, gint32 rank_class, const Tracker *tracker)
{
    for (size_t i = 0; i < tracker_n_points(tracker); i++) {
        const TrackerPoint *point = tracker_point(tracker, i);
        const TrackerPoint *before = i > 0 ? tracker_point(tracker, i - 1) : NULL;
        if (before == NULL || before->bytes != point->bytes) {
            append_counter(writer, rank_class, point->time_ns, "allocated", point->bytes);
        }
        for (int tag = 0; tag < N_MEM_TAGS; tag++) {
            int64_t last = before != NULL ? before->by_tag[tag] : 0;
            if (point->by_tag[tag] != last) {
                append_counter(writer, rank_class, point->time_ns, result_mem_tag_name((MemTag)tag), point->by_tag[tag]);
            }
        }
    }
}

/* ---- the whole ---- */

/* Where the step lies in the trace, which begins with what the host issued ahead of it: what lasts as long as the result says. */
static void append_step(const Writer *writer)
{
    const RunRecord *record = writer->record;
    SimTime begin_ns = G_MAXINT64, end_ns = 0;
    for (guint i = 0; i < record->phases->len; i++) {
        const RecordPhase *phase = &g_array_index(record->phases, RecordPhase, i);
        if (phase->rank_class == g_array_index(record->phases, RecordPhase, 0).rank_class) {
            begin_ns = MIN(begin_ns, phase->start_ns);
            end_ns = MAX(end_ns, phase->end_ns);
        }
    }
    if (end_ns > 0) {
        append_us(writer->out, "step_begins_us", begin_ns - record->begin_ns);
        append_us(writer->out, "step_ends_us", end_ns - record->begin_ns);
    }
}

static void append_head(const Writer *writer)
{
    const RunRecord *record = writer->record;
    int64_t first_hidden, n_hidden = run_record_hidden(record, &first_hidden);
    g_autoptr(GString) classes = g_string_new(NULL);
    for (guint c = 0; c < record->programs->len; c++) {
        if (record->shown[c]) {
            g_string_append_printf(classes, "%s%u", classes->len > 0 ? ", " : "", c);
        }
    }
    g_string_append(writer->out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"schema\":\"moesim.trace/1\"");
    append_text_arg(writer->out, "model", writer->plan->model->name);
    append_int_arg(writer->out, "classes_of_ranks", (int64_t)record->programs->len);
    append_text_arg(writer->out, "classes_shown", classes->str);
    append_int_arg(writer->out, "micro_batches", writer->plan->n_micro_batches);
    append_int_arg(writer->out, "micro_batches_shown", writer->plan->n_micro_batches - n_hidden);
    if (record->programs->len > 1) {
        append_text_arg(writer->out, "ranks", "those of the slowest expert-parallel group, one by one; the result's step is "
                                              "at least as long: it takes the hottest rank of every layer");
    }
    append_step(writer);
    append_text_arg(writer->out, "times", "kernels at the device's time, memory at the host's, which issues ahead of it");
    g_string_append(writer->out, "},\"traceEvents\":[\n");
}

GString *trace_json(const Plan *plan, const RunRecord *record)
{
    g_autoptr(GHashTable) tails = g_hash_table_new_full(g_direct_hash, g_direct_equal, NULL, g_free);
    g_autofree guint32 *streams = g_new0(guint32, record->programs->len);
    Writer writer = {.plan = plan, .record = record, .out = g_string_new(NULL), .tails = tails, .streams = streams};
    for (guint i = 0; i < record->kernels->len; i++) {
        const StepSite *site = &g_array_index(record->kernels, RecordKernel, i).site;
        streams[site->rank_class] |= 1u << run_record_instr(record, site)->stream;
    }
    append_head(&writer);
    append_names(&writer);
    append_phases(&writer);
    append_kernels(&writer);
    for (gint32 c = 0; c < (gint32)record->programs->len; c++) {
        if (record->shown[c]) {
            append_memory(&writer, c, record->memory[c]);
        }
    }
    if (fullest_is_elsewhere(record)) {
        append_memory(&writer, (gint32)record->programs->len, record->fullest_memory);
    }
    g_string_append(writer.out, "\n]}\n");
    return writer.out;
}
