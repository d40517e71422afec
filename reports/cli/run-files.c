#include "reports/cli/run-files.h"

#include <errno.h>
#include <inttypes.h>
#include <glib/gstdio.h>
#include <string.h>

#include "reports/cli/trace.h"
#include "reports/out/csv.h"
#include "sim/base/error.h"
#include "sim/base/file.h"
#include "workloads/run/result.h"

/* Columns of operators.csv, in order. */
enum {
    OPERATOR_PHASE,
    OPERATOR_LAYERS,
    OPERATOR_KIND,
    OPERATOR_NAME,
    OPERATOR_STREAM,
    OPERATOR_LAW,
    OPERATOR_DTYPE,
    OPERATOR_M,
    OPERATOR_N,
    OPERATOR_K,
    OPERATOR_GROUPS,
    OPERATOR_TIMES,
    OPERATOR_LAUNCHES,
    OPERATOR_SECONDS,
    OPERATOR_FLOPS,
    OPERATOR_READ_BYTES,
    OPERATOR_WRITE_BYTES,
    OPERATOR_BYTES,
    OPERATOR_EVIDENCE,
    N_OPERATOR_COLUMNS
};

static const struct {
    const char *name;
    TableKind kind;
    TableUnit unit;
} operator_columns[N_OPERATOR_COLUMNS] = {
    [OPERATOR_PHASE] = {"phase", TABLE_TEXT, TABLE_PLAIN},
    [OPERATOR_LAYERS] = {"layers", TABLE_TEXT, TABLE_PLAIN},
    [OPERATOR_KIND] = {"operator", TABLE_TEXT, TABLE_PLAIN},
    [OPERATOR_NAME] = {"name", TABLE_TEXT, TABLE_PLAIN},
    [OPERATOR_STREAM] = {"stream", TABLE_TEXT, TABLE_PLAIN},
    [OPERATOR_LAW] = {"law", TABLE_TEXT, TABLE_PLAIN},
    [OPERATOR_DTYPE] = {"dtype", TABLE_TEXT, TABLE_PLAIN},
    [OPERATOR_M] = {"m", TABLE_INTEGER, TABLE_PLAIN},
    [OPERATOR_N] = {"n", TABLE_INTEGER, TABLE_PLAIN},
    [OPERATOR_K] = {"k", TABLE_INTEGER, TABLE_PLAIN},
    [OPERATOR_GROUPS] = {"groups", TABLE_INTEGER, TABLE_PLAIN},
    [OPERATOR_TIMES] = {"times", TABLE_INTEGER, TABLE_PLAIN},
    [OPERATOR_LAUNCHES] = {"launches", TABLE_INTEGER, TABLE_PLAIN},
    [OPERATOR_SECONDS] = {"seconds", TABLE_NUMBER, TABLE_SECONDS},
    [OPERATOR_FLOPS] = {"flops", TABLE_NUMBER, TABLE_PLAIN},
    [OPERATOR_READ_BYTES] = {"read_bytes", TABLE_INTEGER, TABLE_BYTES},
    [OPERATOR_WRITE_BYTES] = {"write_bytes", TABLE_INTEGER, TABLE_BYTES},
    [OPERATOR_BYTES] = {"message_bytes", TABLE_INTEGER, TABLE_BYTES},
    [OPERATOR_EVIDENCE] = {"evidence", TABLE_TEXT, TABLE_PLAIN},
};

/* How often a segment runs in a step, and on which layers ("0-2 5"; empty outside the layers). */
static int64_t segment_times(const Program *program, gint32 segment, int64_t n_layers, GString *layers)
{
    int64_t times = 0;
    g_autofree gboolean *seen = g_new0(gboolean, (gsize)n_layers + 1);
    for (guint i = 0; i < program->calls->len; i++) {
        const Call *call = &g_array_index(program->calls, Call, i);
        if (call->segment == segment) {
            times += program_call_times(program, i);
            seen[call->layer >= 0 ? call->layer : n_layers] = TRUE;
        }
    }
    seen[n_layers] = FALSE; /* outside the layers: the end of the last range */
    for (int64_t first = 0, i = 0; i <= n_layers; i++) {
        if (seen[i]) {
            continue;
        }
        if (first < i) {
            g_string_append_printf(layers, "%s%" PRId64, layers->len > 0 ? " " : "", first);
            g_string_append_printf(layers, first + 1 < i ? "-%" PRId64 : "", i - 1);
        }
        first = i + 1;
    }
    return times;
}

static void put_work(Table *table, const Work *work, int64_t n_launches)
{
    const int64_t sizes[] = {work->m, work->n, work->k, work->n_groups};
    table_put_text(table, OPERATOR_DTYPE, dtype_name(work->dtype));
    for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
        if (sizes[i] > 0) {
            table_put_integer(table, OPERATOR_M + i, sizes[i]);
        }
    }
    table_put_integer(table, OPERATOR_READ_BYTES, n_launches * work->read_bytes);
    table_put_integer(table, OPERATOR_WRITE_BYTES, n_launches * work->write_bytes);
}

/* A kernel or collective, run so many times. */
static void put_instr(Table *table, const Segment *segment, const ProgramClock *clock, const Instr *instr, int64_t times,
                      const char *layers)
{
    gboolean is_collective = instr->kind == INSTR_COLLECTIVE;
    table_add_row(table);
    table_put_text(table, OPERATOR_PHASE, program_phase_name((Phase)instr->phase));
    table_put_text(table, OPERATOR_LAYERS, layers);
    table_put_text(table, OPERATOR_KIND, program_label_name(instr->label));
    if (is_collective) {
        g_autofree char *name = program_collective_name(instr);
        table_put_text(table, OPERATOR_NAME, name);
    } else if (instr->op >= 0 && segment->graph != NULL) {
        table_put_text(table, OPERATOR_NAME, graph_op(segment->graph, instr->op)->name);
    }
    table_put_text(table, OPERATOR_STREAM, program_stream_name((StreamId)instr->stream));
    if (!is_collective) {
        table_put_text(table, OPERATOR_LAW, program_law_name(segment, instr));
    }
    if (instr->work >= 0) {
        put_work(table, &g_array_index(segment->works, Work, instr->work), times * instr->n_launches);
    } else {
        table_put_integer(table, OPERATOR_BYTES, times * instr->bytes);
    }
    table_put_integer(table, OPERATOR_TIMES, times);
    table_put_integer(table, OPERATOR_LAUNCHES, times * instr->n_launches);
    table_put_number(table, OPERATOR_SECONDS, (double)(times * program_instr_ns(clock, instr)) * 1e-9);
    table_put_number(table, OPERATOR_FLOPS, (double)times * instr->flops);
    table_put_text(table, OPERATOR_EVIDENCE, evidence_name((Evidence)instr->evidence));
}

Table *run_operators_table(const RunRecord *record)
{
    Table *table = table_new();
    const Program *program = record->listed;
    for (guint i = 0; i < N_OPERATOR_COLUMNS; i++) {
        table_add_column(table, operator_columns[i].name, operator_columns[i].kind, operator_columns[i].unit);
    }
    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, (int)s);
        g_autoptr(GString) layers = g_string_new(NULL);
        int64_t times = segment_times(program, (gint32)s, record->graphs->n_layers, layers);
        for (guint i = 0; i < segment->instrs->len; i++) {
            const Instr *instr = &g_array_index(segment->instrs, Instr, i);
            if ((instr->kind == INSTR_COMPUTE || instr->kind == INSTR_COLLECTIVE) && times > 0) {
                put_instr(table, segment, &program->clock, instr, times, layers->str);
            }
        }
    }
    return table;
}

Table *run_memory_table(const RunRecord *record)
{
    Table *table = table_new();
    const Tracker *tracker = record->told_memory;
    size_t time = table_add_column(table, "time_s", TABLE_NUMBER, TABLE_SECONDS);
    size_t all = table_add_column(table, "allocated", TABLE_INTEGER, TABLE_BYTES);
    for (int tag = 0; tag < N_MEM_TAGS; tag++) {
        table_add_column(table, result_mem_tag_name((MemTag)tag), TABLE_INTEGER, TABLE_BYTES);
    }
    for (size_t i = 0; i < tracker_n_points(tracker); i++) {
        const TrackerPoint *point = tracker_point(tracker, i);
        table_add_row(table);
        table_put_number(table, time, (double)(point->time_ns - record->told_begin_ns) * 1e-9);
        table_put_integer(table, all, point->bytes);
        for (int tag = 0; tag < N_MEM_TAGS; tag++) {
            table_put_integer(table, all + 1 + (size_t)tag, point->by_tag[tag]);
        }
    }
    return table;
}

static gboolean write_text(const char *dir, const char *name, const char *text, size_t length, GError **error)
{
    g_autofree char *path = g_build_filename(dir, name, NULL);
    return file_write(path, text, length, error);
}

static gboolean write_table(const char *dir, const char *name, const Table *table, GError **error)
{
    g_autofree char *text = csv_from_table(table);
    return write_text(dir, name, text, strlen(text), error);
}

gboolean run_files_write(const char *dir, const Plan *plan, const Result *result, const char *json, const char *summary,
                         GError **error)
{
    if (g_mkdir_with_parents(dir, 0777) != 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_IO, "%s: %s", dir, g_strerror(errno));
        return FALSE;
    }
    g_autoptr(RunRecord) record = run_record_new(plan, result, RECORD_KERNELS_MAX, error);
    if (record == NULL) {
        return FALSE;
    }
    g_autoptr(Table) operators = run_operators_table(record);
    g_autoptr(Table) memory = run_memory_table(record);
    g_autoptr(GString) trace = trace_json(plan, record);
    return write_text(dir, "trace.json", trace->str, trace->len, error) &&
           write_table(dir, "operators.csv", operators, error) && write_table(dir, "memory.csv", memory, error) &&
           write_text(dir, "summary.txt", summary, strlen(summary), error) &&
           write_text(dir, "result.json", json, strlen(json), error);
}
