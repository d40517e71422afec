/*
 * Files of a run: trace.json, operators.csv and memory.csv say what the result says, over plans of every kind: tracks do
 * not overlap, operators and memory add up to the result, arrows join members of one meeting, the same plan gives the same
 * bytes, and the size is bounded.
 */
#include "tests/check.h"

#include <jansson.h>

#include "reports/cli/run-files.h"
#include "reports/cli/trace.h"
#include "reports/out/csv.h"
#include "sim/base/csv-read.h"
#include "sim/base/file.h"
#include "sim/base/json-read.h"
#include "workloads/draw.h"
#include "workloads/lower/lower.h"
#include "workloads/run/run.h"

#define H200(nodes) "\"cluster\":{\"preset\":\"h200-sxm\",\"nodes\":" #nodes ",\"gpus_per_node\":8}"

#define SKEWED                                                                                                         \
    "{\"model\":{\"config\":\"olmoe-1b-7b\",\"overrides\":{\"num_hidden_layers\":6}}," H200(1)                          \
    ",\"parallel\":{\"ep\":8},\"workload\":{\"seq_len\":1024,\"global_batch\":40,"                                       \
    "\"routing\":{\"kind\":\"zipf\",\"exponent\":0.8}}}"

typedef struct FilesCase {
    const char *name, *plan;
    int64_t n_classes, n_shown, n_micro_batches; /* expected */
    int64_t n_kernels_max;                       /* 0 = the usual bound */
} FilesCase;

static const FilesCase cases[] = {
    {"dense", "{\"model\":\"llama-3.1-8b\"," H200(1) ",\"workload\":{\"seq_len\":4096}}", 1, 1, 1},
    {"two micro-batches", "{\"model\":\"llama-3.1-8b\"," H200(1) ",\"workload\":{\"seq_len\":4096,\"global_batch\":16}}", 1, 1, 2},
    {"folded", "{\"model\":\"llama-3.1-8b\"," H200(1) ",\"workload\":{\"seq_len\":1024,\"global_batch\":160}}", 1, 1, 20},
    {"loss in chunks, recomputed",
     "{\"model\":\"kimi-k3-mini\"," H200(1) ",\"parallel\":{\"ep\":4},\"workload\":{\"seq_len\":2000,\"global_batch\":24},"
     "\"memory\":{\"recompute\":\"full\"},\"loss\":{\"seq_chunk\":700}}",
     1, 1, 3},
    {"skewed experts", SKEWED, 8, 8, 5},
    {"more classes than are shown", SKEWED, 8, 3, 5, 5500},
    {"no room at all", SKEWED, 8, 1, 5, 1},
    {"replicas, host-bound",
     "{\"model\":\"llama-3.1-8b\"," H200(2) ",\"parallel\":{\"dp_replicate\":2},\"workload\":{\"seq_len\":64},"
     "\"kernels\":\"eager\"}",
     1, 1, 1},
    {"LoRA", "{\"model\":\"olmoe-1b-7b\"," H200(1) ",\"parallel\":{\"ep\":8},\"workload\":{\"mode\":\"lora\",\"seq_len\":1024}}", 1, 1, 1},
};

typedef struct Example {
    Plan *plan;
    Result *result;
    RunRecord *record;
    GString *text; /* the trace */
    json_t *trace, *events;
} Example;

static Example example_new(json_t *value, int64_t n_kernels_max)
{
    g_autoptr(GError) error = NULL;
    Example example = {.plan = plan_from_json(value, "plan", NULL, &error)};
    check_no_error(error);
    const RunOptions asked = {.memory_rank = -1, .peak_time = TRUE};
    example.result = run_plan(example.plan, &asked, &error);
    check_no_error(error);
    example.record = run_record_new(example.plan, example.result, n_kernels_max, &error);
    check_no_error(error);
    return example;
}

static void example_trace(Example *example)
{
    example->text = trace_json(example->plan, example->record);
    example->trace = json_loadb(example->text->str, example->text->len, JSON_REJECT_DUPLICATES, NULL); /* and no NaN */
    assert_non_null(example->trace);
    example->events = json_object_get(example->trace, "traceEvents");
}

static void example_clear(Example *example)
{
    json_decref(example->trace);
    if (example->text != NULL) {
        g_string_free(example->text, TRUE);
    }
    run_record_free(example->record);
    result_free(example->result);
    plan_free(example->plan);
}

static int64_t field_int(json_t *event, const char *key)
{
    json_t *value = json_object_get(event, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

/* A time in microseconds, as nanoseconds. */
static int64_t field_ns(json_t *event, const char *key)
{
    json_t *value = json_object_get(event, key);
    assert_true(json_is_real(value));
    int64_t ns = (int64_t)llround(json_real_value(value) * 1e3);
    if (strcmp(key, "ts") == 0) { /* Perfetto cuts */
        check_int((int64_t)(json_real_value(value) * 1e3), ns);
    }
    return ns;
}

static gboolean is_kind(json_t *event, const char *kind)
{
    return strcmp(json_string_value(json_object_get(event, "ph")), kind) == 0;
}

enum { TRACKS_MAX = 16, CLASSES_MAX = 64, N_DRAWN = 8, DRAWN_INSTRS_MAX = 8000, DRAWN_KERNELS_MAX = 4000 };

/* Slices of a track follow one another; every track and process has a name, none lies before the beginning. */
static void check_tracks(const Example *example)
{
    static int64_t end_ns[CLASSES_MAX][TRACKS_MAX];
    gboolean named[CLASSES_MAX][TRACKS_MAX] = {{FALSE}};
    size_t i;
    json_t *event;
    memset(end_ns, 0, sizeof end_ns);
    json_array_foreach(example->events, i, event) {
        int64_t process = field_int(event, "pid"), track = field_int(event, "tid");
        assert_true(process >= 1 && process <= CLASSES_MAX && track >= 0 && track < TRACKS_MAX);
        if (is_kind(event, "M")) {
            named[process - 1][track] = TRUE;
            continue;
        }
        assert_true(named[process - 1][is_kind(event, "C") ? 0 : track]);
        assert_true(field_ns(event, "ts") >= 0);
        if (is_kind(event, "X")) {
            assert_true(field_ns(event, "ts") >= end_ns[process - 1][track]);
            assert_true(field_ns(event, "dur") >= 0);
            end_ns[process - 1][track] = field_ns(event, "ts") + field_ns(event, "dur");
        }
    }
}

/* Where ranks are alike: kernels alone, counted as often as they stand for, are the result's operators to the nanosecond. */
static void check_operators(const Example *example)
{
    const GPtrArray *operators = example->result->operators;
    g_autofree int64_t *ns = g_new0(int64_t, operators->len), *launches = g_new0(int64_t, operators->len);
    size_t i;
    json_t *event;
    if (example->record->programs->len > 1) {
        return;
    }
    json_array_foreach(example->events, i, event) {
        json_t *args = json_object_get(event, "args");
        const char *name = json_string_value(json_object_get(args, "operator"));
        if (!is_kind(event, "X") || name == NULL) {
            continue;
        }
        guint o = 0;
        while (o < operators->len && strcmp(((ResultOperator *)g_ptr_array_index(operators, o))->name, name) != 0) {
            o++;
        }
        assert_true(o < operators->len);
        int64_t n = json_object_get(args, "stands_for") != NULL ? field_int(args, "stands_for") : 1;
        ns[o] += n * field_ns(args, "alone_us");
        launches[o] += n * field_int(args, "launches");
        assert_true(json_is_string(json_object_get(args, "law")));
        assert_true(json_is_string(json_object_get(args, "evidence")));
    }
    for (guint o = 0; o < operators->len; o++) {
        const ResultOperator *operator = g_ptr_array_index(operators, o);
        check_int(launches[o], operator->launches);
        check_int(ns[o], llround(operator->seconds * 1e9));
    }
}

/* Counters of a class reach its peak; those of single tags add up to the whole at every point. */
static void check_memory(const Example *example)
{
    const RunRecord *record = example->record;
    int64_t peak = 0, n = (int64_t)record->programs->len, place = record->fullest.rank % n;
    gboolean elsewhere = n > 1 && run_record_rank(record, (gint32)place) != record->fullest.rank;
    size_t i;
    json_t *event;
    check_int(record->fullest.rank, example->result->peak_rank);
    json_array_foreach(example->events, i, event) {
        if (is_kind(event, "C") && field_int(event, "pid") == (elsewhere ? n : place) + 1) {
            json_t *args = json_object_get(event, "args");
            gboolean whole = g_str_has_suffix(json_string_value(json_object_get(event, "name")), ": allocated");
            peak = whole ? MAX(peak, field_int(args, "bytes")) : peak;
        }
    }
    check_int(peak, example->result->peak_memory_bytes);
    const Tracker *tracker = record->told_memory;
    double seconds = (double)(tracker_peak(tracker)->time_ns - record->told_begin_ns) * 1e-9;
    check_int(tracker_peak(tracker)->bytes, example->result->peak_memory_bytes);
    check_close(example->result->peak_time_s, seconds, 1e-9);
    check_int(tracker_peak(record->fullest_memory)->bytes, example->result->peak_memory_bytes);
    assert_true(example->result->peak_time_s >= 0 && example->result->peak_time_s <= 2 * example->result->step_time_s);
    for (size_t p = 0; p < tracker_n_points(tracker); p++) {
        const TrackerPoint *point = tracker_point(tracker, p);
        int64_t sum = 0;
        for (int tag = 0; tag < N_MEM_TAGS; tag++) {
            assert_true(point->by_tag[tag] >= 0);
            sum += point->by_tag[tag];
        }
        check_int(sum, point->bytes);
    }
    check_int(tracker_bytes(tracker), example->result->static_memory_bytes); /* after the step as before it */
}

/* Both ends of an arrow lie at the start of a slice of their track. */
static void check_arrows(const Example *example)
{
    gboolean all_shown = TRUE;
    for (guint c = 0; c < example->record->programs->len; c++) {
        all_shown = all_shown && example->record->shown[c];
    }
    g_autoptr(GHashTable) starts = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    int64_t n[2] = {0, 0};
    size_t i;
    json_t *event;
    json_array_foreach(example->events, i, event) {
        if (is_kind(event, "X")) {
            g_hash_table_add(starts, g_strdup_printf("%d %d %.3f", (int)field_int(event, "pid"), (int)field_int(event, "tid"),
                                                     json_real_value(json_object_get(event, "ts"))));
        }
    }
    json_array_foreach(example->events, i, event) {
        gboolean is_start = is_kind(event, "s");
        if (is_start || is_kind(event, "f")) {
            g_autofree char *at = g_strdup_printf("%d %d %.3f", (int)field_int(event, "pid"), (int)field_int(event, "tid"),
                                                  json_real_value(json_object_get(event, "ts")));
            assert_true(g_hash_table_contains(starts, at));
            check_int(field_int(event, "id"), ++n[is_start ? 0 : 1]);
        }
    }
    check_int(n[0], n[1]);
    assert_true(n[0] > 0 || example->record->programs->len == 1 || !all_shown);
    assert_true(n[0] == 0 || example->record->programs->len > 1);
}

/* What a table holds is what its CSV says. */
static void check_round_trip(const Table *table, const CsvTable *csv)
{
    g_autoptr(GError) error = NULL;
    check_int(csv_table_n_rows(csv), table_n_rows(table));
    check_int(csv_table_n_columns(csv), table_n_columns(table));
    for (size_t c = 0; c < table_n_columns(table); c++) {
        check_string(csv_table_column(csv, c), table_column_name(table, c));
        for (size_t r = 0; r < table_n_rows(table); r++) {
            double number;
            if (!table_has(table, r, c)) {
                check_string(csv_table_cell(csv, r, c), "");
            } else if (table_column_kind(table, c) == TABLE_TEXT) {
                check_string(csv_table_cell(csv, r, c), table_text(table, r, c));
            } else {
                assert_true(csv_table_number(csv, r, c, &number, &error));
                check_close(number, table_number(table, r, c), 1e-11);
            }
        }
    }
}

/* Rows of an operator are its entry in the result. */
static void check_operator_sums(const Example *example, const CsvTable *operators)
{
    g_autoptr(GError) error = NULL;
    size_t kind = (size_t)csv_table_find(operators, "operator"), seconds = (size_t)csv_table_find(operators, "seconds");
    size_t flops = (size_t)csv_table_find(operators, "flops");
    for (guint o = 0; o < example->result->operators->len; o++) {
        const ResultOperator *operator = g_ptr_array_index(example->result->operators, o);
        double time = 0, work = 0, number;
        for (size_t r = 0; r < csv_table_n_rows(operators); r++) {
            if (strcmp(csv_table_cell(operators, r, kind), operator->name) == 0) {
                time += csv_table_number(operators, r, seconds, &number, &error) ? number : -1;
                work += csv_table_number(operators, r, flops, &number, &error) ? number : -1;
            }
        }
        check_close(time, operator->seconds, 1e-10);
        check_close(work, operator->flops, 1e-10);
    }
}

static void check_memory_peak(const Example *example, const CsvTable *memory)
{
    g_autoptr(GError) error = NULL;
    size_t all = (size_t)csv_table_find(memory, "allocated");
    double peak = 0, number;
    for (size_t r = 0; r < csv_table_n_rows(memory); r++) {
        assert_true(csv_table_number(memory, r, all, &number, &error));
        peak = MAX(peak, number);
    }
    check_int(peak, example->result->peak_memory_bytes);
}

static CsvTable *load_csv(const char *dir, const char *name)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = g_build_filename(dir, name, NULL);
    CsvTable *csv = csv_table_load(path, &error);
    check_no_error(error);
    return csv;
}

/* The folder, written from a second record: all files, the trace the same bytes, tables as in the first. */
static void check_files(const Example *example)
{
    static const char *const names[] = {"trace.json", "operators.csv", "memory.csv", "summary.txt", "result.json"};
    g_autoptr(GError) error = NULL;
    char *dir = check_make_dir();
    assert_true(run_files_write(dir, example->plan, example->result, "{}\n", "text\n", &error));
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_build_filename(dir, names[i], NULL);
        size_t length;
        g_autofree char *text = file_read(path, &length, &error);
        check_no_error(error);
        if (i == 0) {
            check_int(length, example->text->len);
            assert_memory_equal(text, example->text->str, length);
        }
    }
    g_autoptr(CsvTable) operators = load_csv(dir, "operators.csv"), memory = load_csv(dir, "memory.csv");
    g_autoptr(Table) operators_table = run_operators_table(example->record);
    g_autoptr(Table) memory_table = run_memory_table(example->record);
    check_round_trip(operators_table, operators);
    check_round_trip(memory_table, memory);
    check_operator_sums(example, operators);
    check_memory_peak(example, memory);
    check_remove_dir(dir);
}

/* Where every micro-batch of a single class is shown, the step lasts in the trace as long as the result says. */
static void check_step(const Example *example, json_t *about)
{
    double begin_us = json_number_value(json_object_get(about, "step_begins_us"));
    double end_us = json_number_value(json_object_get(about, "step_ends_us"));
    gboolean is_whole = field_int(about, "micro_batches") == field_int(about, "micro_batches_shown");
    assert_true(begin_us >= 0 && end_us > begin_us);
    if (example->record->programs->len == 1 && is_whole) {
        check_int(llround(1000 * (end_us - begin_us)), llround(1e9 * example->result->step_time_s));
    }
}

static void test_files(void **state)
{
    const FilesCase *files = *state;
    g_autoptr(json_t) value = json_loads(files->plan, 0, NULL);
    assert_non_null(value);
    Example example = example_new(value, files->n_kernels_max > 0 ? files->n_kernels_max : RECORD_KERNELS_MAX);
    example_trace(&example);
    json_t *about = json_object_get(example.trace, "otherData");
    int64_t n_shown = 0;
    for (guint c = 0; c < example.record->programs->len; c++) {
        n_shown += example.record->shown[c] ? 1 : 0;
    }
    check_int(field_int(about, "classes_of_ranks"), files->n_classes);
    check_int(field_int(about, "micro_batches"), files->n_micro_batches);
    check_int(field_int(about, "micro_batches_shown"), MIN(files->n_micro_batches, 3));
    check_int(n_shown, files->n_shown);
    check_step(&example, about);
    check_tracks(&example);
    check_operators(&example);
    check_memory(&example);
    check_arrows(&example);
    if (files->n_kernels_max == 0) {
        check_files(&example);
    }
    example_clear(&example);
}

/* Kernels of one class of a plan. */
static int64_t count_kernels(json_t *value)
{
    g_autoptr(Plan) plan = plan_from_json(value, "plan", NULL, NULL);
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    g_autoptr(Program) program = lower_plan(plan, graphs, NULL, 0);
    int64_t n = 0;
    for (guint c = 0; c < program->calls->len; c++) {
        n += program_segment(program, g_array_index(program->calls, Call, c).segment)->instrs->len;
    }
    return n;
}

/* The same over random plans of every kind that are not large. */
static void test_drawn(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= N_DRAWN; seed++) {
        g_autoptr(json_t) value = draw_plan(seed, NULL);
        if (count_kernels(value) > DRAWN_INSTRS_MAX) {
            continue;
        }
        Example example = example_new(value, DRAWN_KERNELS_MAX);
        print_message("# seed %d: %d kernels of %d classes\n", (int)seed, (int)example.record->kernels->len,
                      (int)example.record->programs->len);
        g_autoptr(Table) operators = run_operators_table(example.record);
        g_autofree char *text = csv_from_table(operators);
        g_autoptr(CsvTable) csv = csv_table_parse(text, strlen(text), "operators.csv", NULL);
        check_operator_sums(&example, csv);
        example_trace(&example);
        check_tracks(&example);
        check_operators(&example);
        check_memory(&example);
        check_arrows(&example);
        example_clear(&example);
    }
}

int main(void)
{
    enum { N_CASES = G_N_ELEMENTS(cases) };
    struct CMUnitTest tests[N_CASES + 1] = {{.name = "drawn plans", .test_func = test_drawn}};
    for (size_t i = 0; i < N_CASES; i++) {
        tests[i + 1] = (struct CMUnitTest){
            .name = cases[i].name, .test_func = test_files, .initial_state = (void *)(uintptr_t)&cases[i]};
    }
    return _cmocka_run_group_tests("run-files", tests, N_CASES + 1, NULL, NULL);
}
