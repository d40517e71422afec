/*
 * The chains of framework operators against a profile: kernels per step of a dense model on one GPU (hidden 2048, 16
 * layers, 16 heads of 128 over 4, 4 sequences of 4096, nothing recomputed), by kind, as the profiler counted them; and
 * what autograd kept, from the allocator. Sources: tests/reference/README.md; the profile's own table is not part of
 * the repository, its counts are below.
 */
#include "tests/check.h"

#include "models/block.h"
#include "models/op.h"
#include "models/ops/attention.h"
#include "models/ops/linear.h"
#include "models/ops/mla-pack.h"
#include "models/ops/rmsnorm.h"
#include "models/ops/sigmoid-gate.h"
#include "models/ops/split.h"

enum { N_LAYERS = 16 };

/* Launches of a step that belong to operators of the layers. */
static const struct {
    const char *what;
    WorkLaw law;
    int launches;
} profile[] = {
    /* products of rotary embeddings 256, minus 32, outer products 32, dense copies 112 */
    {"strided", WORK_STRIDED, 256 + 32 + 32 + 112},
    {"concatenations", WORK_CONCAT, 32},
    {"attention forward", WORK_ATTENTION_FORWARD, 16},
    {"attention backward", WORK_ATTENTION_BACKWARD, 16},
    {"norm forward", WORK_NORM_FORWARD, 32}, /* 33 with the last norm */
    {"norm backward", WORK_NORM_BACKWARD, 32},
    {"norm weight gradient", WORK_NORM_WEIGHT_GRAD, 32},
};

static Model *load(void)
{
    const char *text =
        "{\"model_type\":\"llama\",\"hidden_size\":2048,\"num_hidden_layers\":16,\"num_attention_heads\":16,"
        "\"num_key_value_heads\":4,\"head_dim\":128,\"intermediate_size\":8192,\"vocab_size\":32000,"
        "\"rms_norm_eps\":1e-6,\"rope_theta\":10000,\"tie_word_embeddings\":false,\"hidden_act\":\"silu\"}";
    GError *error = NULL;
    json_t *config = json_loads(text, 0, NULL);
    Model *model = model_from_json(config, "llama", NULL, &error);
    check_no_error(error);
    json_decref(config);
    return model;
}

static RowCounts step_rows(void)
{
    RowCounts rows = {.seq_len = 4096};
    rows.rows[ROWS_ONE] = 1;
    rows.rows[ROWS_TOKENS] = 4 * 4096;
    rows.rows[ROWS_SEQUENCES] = 4;
    rows.rows[ROWS_PAIRS] = 4 * (int64_t)4096 * 4096;
    return rows;
}

static ModelGraph *eager_graph(const Model *model)
{
    BlockOptions options = {.compute = DTYPE_BF16};
    for (size_t i = 0; i < G_N_ELEMENTS(options.eager); i++) {
        options.eager[i] = TRUE;
    }
    return model_graph_new(model, &options);
}

static void test_launches(void **state)
{
    g_autoptr(Model) model = load();
    g_autoptr(ModelGraph) graph = eager_graph(model);
    const Graph *layer = model_graph_layer(graph, 1);
    RowCounts rows = step_rows();
    int launches[N_WORK_LAWS] = {0};
    (void)state;
    for (int i = 0; i < graph_n_ops(layer); i++) {
        OpView view = {layer, graph_op(layer, i), &rows};
        OpCost cost = {0};
        op_class(view.op->kind)->forward_cost(&view, &cost);
        op_class(view.op->kind)->backward_cost(&view, &cost);
        for (int w = 0; w < cost.n_works; w++) {
            launches[cost.works[w].law] += cost.works[w].n_launches;
        }
    }
    for (size_t i = 0; i < G_N_ELEMENTS(profile); i++) {
        print_message("# %s\n", profile[i].what);
        check_int(launches[profile[i].law] * N_LAYERS, profile[i].launches);
    }
}

/* Adds the bytes that an operator keeps and that no operator before it kept. */
static int64_t kept_bytes(const OpView *view, GHashTable *held)
{
    OpSaved saved = {0};
    int64_t bytes = 0;
    op_class(view->op->kind)->saved(view, &saved);
    for (int i = 0; i < view->op->n_inputs; i++) {
        if ((saved.inputs >> i & 1u) && g_hash_table_add(held, GINT_TO_POINTER(view->op->inputs[i] + 1))) {
            bytes += op_in_bytes(view, i);
        }
    }
    for (int i = 0; i < view->op->n_outputs; i++) {
        if ((saved.outputs >> i & 1u) && g_hash_table_add(held, GINT_TO_POINTER(view->op->outputs[i] + 1))) {
            bytes += op_out_bytes(view, i);
        }
    }
    for (int i = 0; i < saved.n_aux; i++) {
        bytes += op_aux_bytes(&saved.aux[i], view->rows);
    }
    return bytes;
}

/* Allocated after forward less what is allocated between steps, in bytes (the b4-none-full row of the reference). */
static void test_kept(void **state)
{
    const double measured = 41098076160.0 - 13318065152.0;
    g_autoptr(Model) model = load();
    g_autoptr(ModelGraph) graph = eager_graph(model);
    const Graph *layer = model_graph_layer(graph, 1);
    g_autoptr(GHashTable) held = g_hash_table_new(NULL, NULL);
    RowCounts rows = step_rows();
    int64_t bytes = 0;
    (void)state;
    for (int i = 0; i < graph_n_ops(layer); i++) {
        OpView view = {layer, graph_op(layer, i), &rows};
        bytes += kept_bytes(&view, held);
    }
    double stream = 16384.0 * 2048 * 2;
    double log_softmax = 16384.0 * 32000 * 4;
    double unsharded = 2 * 32000.0 * 2048 * 2; /* head and embedding stay gathered */
    check_close((double)bytes * N_LAYERS + 2 * stream + log_softmax + unsharded, measured, 1e-3);
}

/*
 * One gated MLA layer (hidden 7168, 96 heads of 128 + 64, latents 1536 and 512) over one sequence of 4096: allocated
 * after its forward, its output included, its input not.
 */
static void test_mla_kept(void **state)
{
    enum { HIDDEN = 7168, HEADS = 96, NOPE = 128, ROPE = 64, V_DIM = 128, N_TOKENS = 4096 };
    const double measured = 799048704;
    Graph *graph = graph_new(DTYPE_BF16);
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = N_TOKENS, [ROWS_SEQUENCES] = 1}, .seq_len = N_TOKENS};
    MlaPackAttr pack = {HEADS, NOPE, ROPE, V_DIM};
    AttentionAttr attr = {HEADS, HEADS, NOPE + ROPE, V_DIM, 0, TRUE, 0, FALSE};
    SplitAttr split = {.groups = 1, .n_parts = 2, .widths = {512, ROPE}};
    int parts[2];
    (void)state;
    graph->eager_default = TRUE;
    int x = graph_add_input(graph, "x", ROWS_TOKENS, HIDDEN, DTYPE_BF16, TRUE);
    int q = rmsnorm_add(graph, "q_norm", linear_add(graph, "q_a", x, 1536, FALSE), 1536, 1e-6, FALSE);
    q = linear_add(graph, "q_b", q, HEADS * (NOPE + ROPE), FALSE);
    split_add(graph, "kv_split", linear_add(graph, "kv_a", x, 512 + ROPE, FALSE), &split, parts);
    int c = rmsnorm_add(graph, "kv_norm", parts[0], 512, 1e-6, FALSE);
    MlaPackTensors kv =
        mla_pack_add(graph, "pack", linear_add(graph, "kv_b", c, HEADS * (NOPE + V_DIM), FALSE), parts[1], &pack);
    int o = attention_add(graph, "attention", q, kv.k, kv.v, &attr).o;
    o = sigmoid_gate_add(graph, "gate", o, linear_add(graph, "g", x, HEADS * V_DIM, FALSE));
    int y = linear_add(graph, "o", o, HIDDEN, FALSE);
    graph_add_output(graph, y);
    graph_finish(graph);
    g_autoptr(GHashTable) held = g_hash_table_new(NULL, NULL);
    int64_t bytes = graph_tensor_bytes(graph_tensor(graph, y), &rows);
    g_hash_table_add(held, GINT_TO_POINTER(x + 1));
    for (int i = 0; i < graph_n_ops(graph); i++) {
        OpView view = {graph, graph_op(graph, i), &rows};
        bytes += kept_bytes(&view, held);
    }
    check_close((double)bytes, measured, 2e-3);
    graph_free(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launches),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_mla_kept),
    };
    return cmocka_run_group_tests_name("eager-chain", tests, NULL, NULL);
}
