/*
 * One layer of a K3-shaped model, part by part, against one H200 (tests/reference/h200-k3-parts.csv): time of forward, time of
 * forward and backward, and what is allocated after forward. The parts are the blocks of the kimi-k3 preset where the
 * preset has them, priced as the framework's chains of operators around the fused delta-rule kernel, as they ran.
 *
 * The head is in test-measured-loss.
 *
 * The loops were long and back to back, so kernels run at the clock that the part's own power share leaves.
 */
#include "tests/check.h"

#include "models/block.h"
#include "models/op.h"
#include "models/ops/activation.h"
#include "models/ops/attnres.h"
#include "models/ops/grouped-gemm.h"
#include "models/ops/linear.h"
#include "models/ops/permute.h"
#include "models/ops/residual-add.h"
#include "models/ops/rmsnorm.h"
#include "models/ops/unpermute.h"
#include "sim/base/csv-read.h"
#include "workloads/lower/clock.h"
#include "workloads/lower/price.h"

enum { HIDDEN = 7168, LATENT = 3584, FFN = 3072, SHARED = 6144, TOP_K = 16, EXPERTS = 896, LOCAL = 14 };

static const double time_bound = 0.12, kept_bound = 0.03;

static const ActivationAttr situ = {ACTIVATION_FORM_SITU, 4.0, 25.0};

typedef struct Part {
    Graph *graph;
    RowCounts rows;
} Part;

/* A row of the table. */
typedef struct Row {
    char *name;
    const CsvTable *table;
    size_t row;
} Row;

static int add_x(Part *part, const char *name, RowSpace rows, int64_t width)
{
    return graph_add_input(part->graph, name, rows, width, DTYPE_BF16, TRUE);
}

static void build_block(Part *part, BlockKind kind, int layer)
{
    GError *error = NULL;
    g_autoptr(Model) model = model_load("kimi-k3", NULL, &error);
    const BlockOptions options = {.compute = DTYPE_BF16};
    check_no_error(error);
    int x = add_x(part, "x", ROWS_TOKENS, HIDDEN);
    graph_add_output(part->graph, block_class(kind)->build(part->graph, model, &model->layers[layer], &options, x));
}

static void build_mla(Part *part)
{
    build_block(part, BLOCK_mla_layer, 3);
}

static void build_kda(Part *part)
{
    build_block(part, BLOCK_kda_layer, 0);
}

/* Routed path without its experts, and the two shared experts. */
static void build_latent_and_shared(Part *part)
{
    Graph *g = part->graph;
    int x = add_x(part, "x", ROWS_TOKENS, HIDDEN);
    int z = rmsnorm_add(g, "latent_norm", linear_add(g, "down", x, LATENT, FALSE), LATENT, 1e-6, FALSE);
    int y = linear_add(g, "up", z, HIDDEN, FALSE);
    int gate = linear_add(g, "gate_proj", x, SHARED, FALSE), up = linear_add(g, "up_proj", x, SHARED, FALSE);
    int shared = linear_add(g, "down_proj", activation_add(g, "act", &situ, gate, up), HIDDEN, FALSE);
    graph_add_output(g, residual_add(g, "sum", y, shared, 1.0));
}

/* Experts of one of 64 ranks under even traffic. */
static void build_experts(Part *part)
{
    Graph *g = part->graph;
    int x = add_x(part, "x", ROWS_RECEIVED, LATENT);
    g->ep_size = EXPERTS / LOCAL;
    part->rows.rows[ROWS_RECEIVED] = part->rows.rows[ROWS_TOKENS] * TOP_K;
    int gate = grouped_gemm_add(g, "w1", x, FFN, EXPERTS), up = grouped_gemm_add(g, "w3", x, FFN, EXPERTS);
    graph_add_output(g, grouped_gemm_add(g, "w2", activation_add(g, "act", &situ, gate, up), LATENT, EXPERTS));
}

static void build_permute(Part *part)
{
    Graph *g = part->graph;
    int x = add_x(part, "x", ROWS_TOKENS, LATENT);
    int order = graph_add_input(g, "order", ROWS_TOKENS, TOP_K, DTYPE_INT64, FALSE);
    part->rows.rows[ROWS_SLOTS] = part->rows.rows[ROWS_TOKENS] * TOP_K;
    graph_add_output(g, permute_add(g, "permute", x, order));
}

/* Not its whole chain ran: weights came sorted and cast, and their gradient was not asked for. */
static void build_unpermute(Part *part)
{
    Graph *g = part->graph;
    int y = add_x(part, "y", ROWS_SLOTS, LATENT);
    int weights = graph_add_input(g, "weights", ROWS_TOKENS, TOP_K, DTYPE_BF16, FALSE);
    int order = graph_add_input(g, "order", ROWS_TOKENS, TOP_K, DTYPE_INT64, FALSE);
    part->rows.rows[ROWS_SLOTS] = part->rows.rows[ROWS_TOKENS] * TOP_K;
    graph_add_output(g, unpermute_add(g, "unpermute", y, weights, order));
}

static void build_attnres(Part *part)
{
    int sources[9];
    for (int i = 0; i < 9; i++) {
        g_autofree char *name = g_strdup_printf("source %d", i);
        sources[i] = add_x(part, name, ROWS_TOKENS, HIDDEN);
    }
    graph_add_output(part->graph, attnres_add(part->graph, "proj", "norm", sources, 9, 1e-5));
}

static const struct {
    const char *name;
    void (*build)(Part *part);
} builders[] = {
    {"gated_mla", build_mla},
    {"latent_projections_and_shared_experts", build_latent_and_shared},
    {"experts_14_local_situ_eager", build_experts},
    {"permute", build_permute},
    {"unpermute_index_add", build_unpermute},
    {"attnres_fused", build_attnres},
    {"kda_layer", build_kda},
};

static double cell(const Row *row, const char *column)
{
    GError *error = NULL;
    double number;
    csv_table_number(row->table, row->row, (size_t)csv_table_find(row->table, column), &number, &error);
    check_no_error(error);
    return number;
}

static void part_build(Part *part, const char *name)
{
    for (size_t i = 0; i < G_N_ELEMENTS(builders); i++) {
        if (strcmp(builders[i].name, name) == 0) {
            builders[i].build(part);
            return;
        }
    }
    fail_msg("no part is called %s", name);
}

static Part part_new(const Row *row)
{
    int64_t tokens = (int64_t)cell(row, "tokens");
    Part part = {graph_new(DTYPE_BF16), {.seq_len = tokens}};
    part.rows.rows[ROWS_ONE] = part.rows.rows[ROWS_SEQUENCES] = 1;
    part.rows.rows[ROWS_TOKENS] = tokens;
    part.rows.rows[ROWS_PAIRS] = tokens * tokens;
    part.graph->eager_default = TRUE;
    part_build(&part, csv_table_cell(row->table, row->row, 0));
    graph_finish(part.graph);
    for (int o = 0; o < graph_n_ops(part.graph); o++) {
        Op *op = graph_op(part.graph, o);
        op->eager = op->kind != OP_kda && op->kind != OP_attnres;
    }
    return part;
}

static void add_stream(GArray *works, WorkLaw law, int64_t read_bytes, int64_t write_bytes, int64_t n)
{
    Work work = {.law = law, .read_bytes = read_bytes, .write_bytes = write_bytes, .n_launches = (int)n};
    if (n > 0) {
        g_array_append_val(works, work);
    }
}

/* Gradients of a tensor with several readers are added up, two at a time. */
static void add_sums(const Part *part, GArray *works)
{
    for (guint t = 0; t < part->graph->tensors->len; t++) {
        const GraphTensor *tensor = graph_tensor(part->graph, (int)t);
        int64_t bytes = graph_tensor_bytes(tensor, &part->rows);
        if (tensor->needs_grad) {
            add_stream(works, WORK_ELEMENTWISE, 2 * bytes, bytes, tensor->n_consumers - 1);
        }
    }
}

static void add_works(const Part *part, gboolean backward, GArray *works)
{
    for (int o = 0; o < graph_n_ops(part->graph); o++) {
        OpView view = {part->graph, graph_op(part->graph, o), &part->rows};
        const OpClass *cls = op_class(view.op->kind);
        OpCost cost = {0};
        (backward ? cls->backward_cost : cls->forward_cost)(&view, &cost);
        g_array_append_vals(works, cost.works, (guint)cost.n_works);
    }
    if (backward) {
        add_sums(part, works);
    }
}

/* At the power share that the kernels themselves make. */
static double works_seconds(const Device *device, GArray *works)
{
    double ns = 0, tensor = 0, total = 0;
    for (guint i = 0; i < works->len; i++) {
        const Work *work = &g_array_index(works, Work, i);
        double burst = (double)timing_work_ns(device, work, TIMING_BURST, NULL) * work->n_launches;
        total += burst;
        tensor += burst * timing_power_share(device, work);
    }
    for (guint i = 0; i < works->len; i++) {
        const Work *work = &g_array_index(works, Work, i);
        ns += (double)timing_in_step_ns(device, work, tensor / total, NULL) * work->n_launches;
    }
    return ns / 1e9;
}

static int storage_of(const Graph *graph, int tensor)
{
    int maker = graph_tensor(graph, tensor)->producer;
    return maker >= 0 && op_class(graph_op(graph, maker)->kind)->views_input ? storage_of(graph, graph_op(graph, maker)->inputs[0]) : tensor;
}

static int64_t hold(const Part *part, GHashTable *held, int tensor)
{
    int storage = storage_of(part->graph, tensor);
    const GraphTensor *info = graph_tensor(part->graph, storage);
    return info->producer >= 0 && g_hash_table_add(held, GINT_TO_POINTER(storage + 1)) ? graph_tensor_bytes(info, &part->rows) : 0;
}

/* Allocated after forward beyond the inputs: kept tensors and the output. */
static int64_t kept_bytes(const Part *part)
{
    g_autoptr(GHashTable) held = g_hash_table_new(NULL, NULL);
    int64_t bytes = hold(part, held, g_array_index(part->graph->outputs, int, 0));
    for (int o = 0; o < graph_n_ops(part->graph); o++) {
        OpView view = {part->graph, graph_op(part->graph, o), &part->rows};
        OpSaved saved = {0};
        if (!op_has_backward(&view)) {
            continue;
        }
        op_class(view.op->kind)->saved(&view, &saved);
        for (int i = 0; i < view.op->n_inputs; i++) {
            bytes += saved.inputs >> i & 1u ? hold(part, held, view.op->inputs[i]) : 0;
        }
        for (int i = 0; i < view.op->n_outputs; i++) {
            bytes += saved.outputs >> i & 1u ? hold(part, held, view.op->outputs[i]) : 0;
        }
        for (int i = 0; i < saved.n_aux; i++) {
            bytes += op_aux_bytes(&saved.aux[i], &part->rows);
        }
    }
    return bytes;
}

/* Seconds of forward, and of forward and backward. */
typedef struct PartSeconds {
    double forward, both;
} PartSeconds;

static PartSeconds part_seconds(const Device *device, const Part *part)
{
    g_autoptr(GArray) works = g_array_new(FALSE, FALSE, sizeof(Work));
    PartSeconds seconds;
    add_works(part, FALSE, works);
    seconds.forward = works_seconds(device, works);
    add_works(part, TRUE, works);
    seconds.both = works_seconds(device, works);
    return seconds;
}

static void test_part(void **state)
{
    const Row *row = *state;
    GError *error = NULL;
    g_autoptr(Device) device = device_load("h200-sxm", &error);
    check_no_error(error);
    Part part = part_new(row);
    PartSeconds got = part_seconds(device, &part);
    double forward = cell(row, "forward_s"), both = cell(row, "forward_backward_s"), kept = cell(row, "kept_bytes");
    print_message("# %s: forward %+.1f %%, with backward %+.1f %%, kept %+.2f %%\n", row->name, 100 * (got.forward / forward - 1),
                  100 * (got.both / both - 1), 100 * ((double)kept_bytes(&part) / kept - 1));
    check_close(got.forward, forward, time_bound);
    check_close(got.both, both, time_bound);
    check_close((double)kept_bytes(&part), kept, kept_bound);
    graph_free(part.graph);
}

int main(void)
{
    GError *error = NULL;
    g_autofree char *path = g_build_filename(g_getenv("MOESIM_SOURCE_ROOT"), "tests", "reference", "h200-k3-parts.csv", NULL);
    g_autoptr(CsvTable) table = csv_table_load(path, &error);
    g_assert_no_error(error);
    g_autofree Row *rows = g_new0(Row, csv_table_n_rows(table));
    size_t n = 0;
    for (size_t i = 0; i < csv_table_n_rows(table); i++) {
        if (strcmp(csv_table_cell(table, i, 0), "head_and_loss") != 0) {
            rows[n++] = (Row){g_strjoin(" ", csv_table_cell(table, i, 0), csv_table_cell(table, i, 1), csv_table_cell(table, i, 2), NULL), table, i};
        }
    }
    int failed = check_run_cases("parts of a layer", test_part, rows, n, sizeof(Row));
    for (size_t i = 0; i < n; i++) {
        g_free(rows[i].name);
    }
    return failed;
}
