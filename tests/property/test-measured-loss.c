/*
 * The loss against measured steps of forward and backward on one H200 (PyTorch 2.11): full, in chunks of tokens that are
 * recomputed in backward, and as cut cross entropy. The program that the lowering emits for the loss runs alone, host
 * included, in time and in memory.
 */
#include "tests/check.h"

#include "models/ops/cross-entropy.h"
#include "models/ops/head-loss.h"
#include "models/ops/linear.h"
#include "sim/base/csv-read.h"
#include "tests/property/random-plan.h"
#include "workloads/lower/clock.h"
#include "workloads/lower/layer.h"
#include "workloads/lower/lower.h"
#include "workloads/run/ledger.h"
#include "workloads/run/step.h"

typedef struct Row {
    const char *name;
    int64_t tokens, vocab, hidden, chunk; /* chunk 0 = whole */
    gboolean is_cut;
    double seconds;
    int64_t peak_bytes;
} Row;

static Plan *plan_of_row(const Row *row)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *words = g_strdup_printf(
        "model.config=llama-3.1-8b model.overrides.num_hidden_layers=1 model.overrides.hidden_size=%d model.overrides.vocab_size=%d "
        "cluster.preset=h200-sxm cluster.nodes=1 cluster.gpus_per_node=1 workload.seq_len=%d loss.seq_chunk=%d "
        "precision.parameters=bf16 kernels=eager",
        (int)row->hidden, (int)row->vocab, (int)row->tokens, (int)row->chunk);
    Plan *plan = plan_of_words(words, &error);
    check_no_error(error);
    return plan;
}

static void add_call(Program *program, int segment, gint32 first_buffer)
{
    Call call = {.segment = segment, .layer = -1, .frame = first_buffer};
    for (int i = 0; i < CALL_ARGS_MAX; i++) {
        call.args[i] = i >= ARG_OUTPUT ? (i - ARG_OUTPUT) * N_BOUNDARY : 0;
    }
    g_array_append_val(program->calls, call);
}

static Graph *loss_graph(const Row *row)
{
    const CrossEntropyAttr attr = {.ignore_index = CROSS_ENTROPY_IGNORE, .reduction = LOSS_SUM};
    Graph *graph = graph_new(DTYPE_BF16);
    int x = graph_add_input(graph, "x", ROWS_TOKENS, row->hidden, DTYPE_BF16, TRUE);
    int labels = graph_add_input(graph, "labels", ROWS_TOKENS, 1, DTYPE_INT64, FALSE);
    graph_add_output(graph, row->is_cut ? head_loss_add(graph, "lm_head", x, labels, row->vocab, 128, &attr)
                                        : cross_entropy_add(graph, "loss", linear_add(graph, "lm_head", x, row->vocab, FALSE),
                                                            labels, &attr));
    graph_finish(graph);
    for (int o = 0; o < graph_n_ops(graph); o++) {
        graph_op(graph, o)->eager = !row->is_cut;
    }
    return graph;
}

/* A loss in one piece: forward and backward of its graph. */
static Program *whole_program(const Row *row, const Plan *plan, const Graph *graph)
{
    const RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = row->tokens}, .seq_len = row->tokens};
    Program *program = program_new();
    int segment = program_add_segment(program, "loss", graph);
    Emitter emitter = {.plan = plan, .device = plan->cluster->device, .segment = program_segment(program, segment)};
    LayerPass pass = {.emitter = &emitter, .graph = graph, .rows = &rows, .dying_source = -1, .next_op = -1,
                      .cut_tensor = -1};
    g_autofree Place *grads = g_new0(Place, graph->params->len);
    layer_forward(&pass, SAVE_ALL);
    emit_alloc(&emitter, STREAM_COMPUTE, (Place){ARG_OUTPUT, BOUNDARY_GRAD}, 4, MEM_ACTIVATIONS);
    layer_backward(&pass, SAVE_ALL, grads);
    gint32 places = N_BOUNDARY * (1 + (gint32)graph->inputs->len);
    program->n_tokens = N_GLOBAL_TOKENS;
    program->n_buffers = places + layer_frame_buffers(graph);
    add_call(program, segment, places);
    clock_settle(program);
    return program;
}

/* Of a whole plan's program, the calls of the loss chunks. */
static Program *chunk_program(const Plan *plan, const ModelGraph *graphs)
{
    Program *program = lower_plan(plan, graphs, NULL, 0);
    guint kept = 0;
    for (guint c = 0; c < program->calls->len; c++) {
        Call *call = &g_array_index(program->calls, Call, c);
        if (strstr(program_segment(program, call->segment)->name, "loss chunk") != NULL) {
            g_array_index(program->calls, Call, kept++) = *call;
        }
    }
    assert_true(kept > 1);
    g_array_set_size(program->calls, kept);
    memset(program->static_bytes, 0, sizeof program->static_bytes);
    return program;
}

static void set_alive(gboolean *alive, const Call *call, const Instr *instr)
{
    if (instr->kind == INSTR_ALLOC || instr->kind == INSTR_FREE || instr->kind == INSTR_MOVE) {
        alive[program_resolve(call, instr->place)] = instr->kind == INSTR_ALLOC;
    }
    if (instr->kind == INSTR_MOVE) {
        alive[program_resolve(call, instr->to)] = TRUE;
    }
}

/* Frees what the loss leaves to the rest of a step, and ends the phases. */
static void close_program(Program *program)
{
    g_autofree gboolean *alive = g_new0(gboolean, program->n_buffers);
    for (guint c = 0; c < program->calls->len; c++) {
        const Call *call = &g_array_index(program->calls, Call, c);
        const GArray *instrs = program_segment(program, call->segment)->instrs;
        for (guint i = 0; i < instrs->len; i++) {
            set_alive(alive, call, &g_array_index(instrs, Instr, i));
        }
    }
    int segment = program_add_segment(program, "end", NULL);
    Emitter emitter = {.segment = program_segment(program, segment)};
    for (gint32 b = 0; b < program->n_buffers; b++) {
        if (alive[b]) {
            emit_free(&emitter, (Place){0, b});
        }
    }
    for (int phase = 0; phase < N_PHASES; phase++) {
        emitter.phase = (Phase)phase;
        emit(&emitter, INSTR_MARK, STREAM_COMPUTE);
    }
    add_call(program, segment, 0);
}

/* Errors of a row, as fractions. */
typedef struct RowError {
    double time, memory;
} RowError;

static RowError row_error(const Row *row)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_of_row(row);
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    g_autoptr(Graph) graph = loss_graph(row);
    g_autoptr(Program) program = row->chunk > 0 ? chunk_program(plan, graphs) : whole_program(row, plan, graph);
    Program *const programs[] = {program};
    StepTimes times;
    Ledger ledger;
    close_program(program);
    gboolean ok = ledger_run(program, 0, &ledger, &error) && step_run(plan, programs, 1, &times, &error);
    check_no_error(error);
    assert_true(ok);
    RowError off = {(double)times.step_ns * 1e-9 / row->seconds - 1, (double)ledger.peak_bytes / (double)row->peak_bytes - 1};
    print_message("# %s, %" G_GINT64_FORMAT " x %" G_GINT64_FORMAT " x %" G_GINT64_FORMAT ": time %+.1f %% of %.4f s, peak %+.2f %%\n", row->name,
                  row->tokens, row->vocab, row->hidden, 100 * off.time, row->seconds, 100 * off.memory);
    return off;
}

static int64_t cell_int(const CsvTable *table, size_t row, const char *column)
{
    g_autoptr(GError) error = NULL;
    double number;
    gboolean ok = csv_table_number(table, row, (size_t)csv_table_find(table, column), &number, &error);
    check_no_error(error);
    assert_true(ok);
    return (int64_t)number;
}

static void test_rows(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autofree char *path = check_source_path("tests/reference/h200-loss.csv");
    g_autoptr(CsvTable) table = csv_table_load(path, &error);
    check_no_error(error);
    double sum = 0, n_rows = (double)csv_table_n_rows(table);
    check_int(csv_table_n_rows(table), 16);
    for (size_t r = 0; r < csv_table_n_rows(table); r++) {
        const char *name = csv_table_cell(table, r, (size_t)csv_table_find(table, "name"));
        Row row = {.name = name,
                   .tokens = cell_int(table, r, "tokens"),
                   .vocab = cell_int(table, r, "vocab"),
                   .hidden = cell_int(table, r, "hidden"),
                   .chunk = cell_int(table, r, "seq_chunk"),
                   .is_cut = strcmp(name, "cut") == 0,
                   .seconds = g_ascii_strtod(csv_table_cell(table, r, (size_t)csv_table_find(table, "seconds")), NULL),
                   .peak_bytes = cell_int(table, r, "peak_bytes")};
        RowError off = row_error(&row);
        sum += fabs(off.time);
        assert_true(fabs(off.memory) <= 0.01);
        assert_true(fabs(off.time) <= 0.20); /* the same chunks of 512 took 11.2 and 13.6 ms: hosts differ in speed */
    }
    print_message("# time, mean absolute: %.1f %%\n", 100 * sum / n_rows);
    assert_true(sum / n_rows <= 0.07);
}

/*
 * Published memory of cut cross entropy, loss and gradient, 8192 x 256,000 x 2304 in MiB (arXiv 2411.09009, table 1). The other
 * forms of that table and of its like are other algorithms: logits capped, or never upcast, chunks kept for backward, or gradients made
 * in forward.
 */
static void test_published(void **state)
{
    static const double published_mib[] = {1164, 1163, 1162, 1162, 1163};
    const Row row = {.name = "cut", .tokens = 8192, .vocab = 256000, .hidden = 2304, .is_cut = TRUE, .seconds = 0.2, .peak_bytes = (int64_t)1164 << 20};
    double mib = (1 + row_error(&row).memory) * 1164;
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(published_mib); i++) {
        check_close(mib, published_mib[i], 0.05);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_published)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
