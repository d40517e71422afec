/*
 * Attention in its several forms, which must agree: dense and sparse with everything selected, keys of every head and
 * absorbed projection, a selection and a mask, the fused kernels and the chain of framework operators.
 */
#include "tests/check.h"

#include "models/execute.h"
#include "models/ops/attention.h"
#include "models/ops/dsa-indexer.h"
#include "models/ops/linear.h"
#include "models/ops/mla-pack.h"
#include "models/ops/rope.h"
#include "models/ops/sigmoid-gate.h"
#include "models/ops/sparse-attention.h"
#include "models/ops/split.h"
#include "sim/base/rng.h"

enum { N_TOKENS = 11, HEADS = 3, NOPE = 4, ROPE = 2, V_DIM = 5, LATENT = 6, N_INPUTS_MAX = 8 };

/* One way to compute: a graph and what came out. */
typedef struct Way {
    Graph *graph;
    RowCounts rows;
    Execution *run;
    Tensor *in[N_INPUTS_MAX];
    Tensor *param, *seed;
    int out;
} Way;

static const int64_t doc_starts[] = {0, 4, N_TOKENS};

static Tensor *random_tensor(int64_t rows, int64_t width, uint64_t salt)
{
    Tensor *tensor = tensor_new_2d(TENSOR_F64, rows, width);
    for (int64_t i = 0; i < rows * width; i++) {
        tensor_set(tensor, i, 2 * rng_uniform(salt, RNG_TEST, (uint64_t)i) - 1);
    }
    return tensor;
}

static void way_init(Way *way)
{
    *way = (Way){.graph = graph_new(DTYPE_FP64), .rows = {.doc_starts = doc_starts}};
    way->rows.rows[ROWS_ONE] = 1;
    way->rows.rows[ROWS_TOKENS] = N_TOKENS;
    way->rows.rows[ROWS_SEQUENCES] = 2;
}

static int way_input(Way *way, int64_t width)
{
    return graph_add_input(way->graph, "x", ROWS_TOKENS, width, DTYPE_FP64, TRUE);
}

/* Runs forward and backward; input i and the parameter hold the same numbers in every way. */
static void way_run(Way *way, int out)
{
    GError *error = NULL;
    way->out = out;
    graph_add_output(way->graph, out);
    graph_finish(way->graph);
    way->run = execute_new(way->graph, &way->rows, TENSOR_F64);
    for (guint i = 0; i < way->graph->inputs->len; i++) {
        int idx = g_array_index(way->graph->inputs, int, i);
        way->in[i] = random_tensor(N_TOKENS, graph_tensor(way->graph, idx)->width, i + 1);
        execute_put(way->run, idx, way->in[i]);
    }
    if (way->graph->params->len > 0) {
        const GraphParam *param = graph_param(way->graph, 0);
        way->param = random_tensor(param->dims[0], param->dims[1], 90);
        execute_put_param(way->run, 0, way->param);
    }
    way->seed = random_tensor(N_TOKENS, graph_tensor(way->graph, out)->width, 91);
    execute_forward(way->run, &error);
    check_no_error(error);
    execute_put_grad(way->run, out, way->seed);
    execute_backward(way->run, &error);
    check_no_error(error);
}

static void way_clear(Way *way)
{
    execute_free(way->run);
    graph_free(way->graph);
    for (int i = 0; i < N_INPUTS_MAX; i++) {
        tensor_free(way->in[i]);
    }
    tensor_free(way->param);
    tensor_free(way->seed);
}

static void check_tensors(const Tensor *a, const Tensor *b)
{
    assert_non_null(a);
    assert_non_null(b);
    check_int(tensor_numel(a), tensor_numel(b));
    for (int64_t i = 0; i < tensor_numel(a); i++) {
        assert_true(fabs(tensor_get(a, i) - tensor_get(b, i)) <= 1e-12);
    }
}

/* Output, gradients of the first n_inputs inputs and of the parameter are the same. */
static void check_ways(const Way *a, const Way *b, int n_inputs)
{
    check_tensors(execute_value(a->run, a->out), execute_value(b->run, b->out));
    for (int i = 0; i < n_inputs; i++) {
        check_tensors(execute_grad(a->run, g_array_index(a->graph->inputs, int, i)),
                      execute_grad(b->run, g_array_index(b->graph->inputs, int, i)));
    }
    if (a->param != NULL) {
        check_tensors(execute_param_grad(a->run, 0), execute_param_grad(b->run, 0));
    }
}

/* A selection of top_k keys by an indexer with inputs of its own, behind those that are compared. */
static int selection(Way *way, int64_t top_k)
{
    DsaIndexerAttr attr = {.heads = 2, .dim = 3, .top_k = top_k, .scale = 1};
    int q = way_input(way, 6);
    int k = way_input(way, 3);
    int w = way_input(way, 2);
    return dsa_indexer_add(way->graph, "indexer", q, k, w, &attr).sel;
}

static void test_all_selected_is_dense(void **state)
{
    AttentionAttr dense = {.heads = 4, .kv_heads = 2, .head_dim = 3, .v_dim = 5, .causal = TRUE};
    SparseAttentionAttr sparse = {.heads = 4, .kv_heads = 2, .head_dim = 3, .v_dim = 5};
    Way a, b;
    (void)state;
    way_init(&a);
    way_init(&b);
    int q = way_input(&a, 12), k = way_input(&a, 6), v = way_input(&a, 10);
    way_run(&a, attention_add(a.graph, "attention", q, k, v, &dense).o);
    q = way_input(&b, 12), k = way_input(&b, 6), v = way_input(&b, 10);
    way_run(&b, sparse_attention_add(b.graph, "attention", q, k, v, selection(&b, N_TOKENS + 2), &sparse).o);
    check_ways(&a, &b, 3);
    way_clear(&a);
    way_clear(&b);
}

static void test_absorbed_is_plain(void **state)
{
    MlaPackAttr pack = {HEADS, NOPE, ROPE, V_DIM};
    SparseAttentionAttr attr = {.heads = HEADS, .kv_heads = HEADS, .head_dim = NOPE + ROPE, .v_dim = V_DIM};
    Way a, b;
    (void)state;
    way_init(&a);
    way_init(&b);
    int q = way_input(&a, HEADS * (NOPE + ROPE)), c = way_input(&a, LATENT), k_rope = way_input(&a, ROPE);
    int kv = linear_add(a.graph, "kv_b_proj", c, HEADS * (NOPE + V_DIM), FALSE);
    MlaPackTensors packed = mla_pack_add(a.graph, "pack", kv, k_rope, &pack);
    way_run(&a, sparse_attention_add(a.graph, "attention", q, packed.k, packed.v, selection(&a, 3), &attr).o);
    q = way_input(&b, HEADS * (NOPE + ROPE)), c = way_input(&b, LATENT), k_rope = way_input(&b, ROPE);
    attr.latent = LATENT;
    attr.rope_dim = ROPE;
    int sel = selection(&b, 3);
    way_run(&b, sparse_mla_add(b.graph, "attention", "kv_b_proj", (int[]){q, c, k_rope, sel}, &attr).o);
    check_ways(&a, &b, 3);
    way_clear(&a);
    way_clear(&b);
}

/* The unfused form of sparse attention: all scores of a head, those not selected left out of the softmax. */
static void test_selected_is_masked(void **state)
{
    enum { DIM = 3 };
    SparseAttentionAttr attr = {.heads = 1, .kv_heads = 1, .head_dim = DIM, .v_dim = 1, .scale = 0.7};
    Way way;
    (void)state;
    way_init(&way);
    int q = way_input(&way, DIM), k = way_input(&way, DIM), v = way_input(&way, 1);
    int sel = selection(&way, 3);
    way_run(&way, sparse_attention_add(way.graph, "attention", q, k, v, sel, &attr).o);
    const Tensor *selected = execute_value(way.run, sel);
    for (int t = 0; t < N_TOKENS; t++) {
        double mask[N_TOKENS] = {0};
        double sum = 0, o = 0;
        for (int i = 0; i < 3; i++) {
            int64_t s = (int64_t)tensor_get(selected, t * 3 + i);
            assert_true(s <= t && (s < 0 || (s >= 4) == (t >= 4)));
            mask[s < 0 ? 0 : s] += s < 0 ? 0 : 1;
        }
        for (int s = 0; s < N_TOKENS; s++) {
            double score = 0;
            for (int d = 0; d < DIM; d++) {
                score += tensor_get(way.in[0], t * DIM + d) * tensor_get(way.in[1], s * DIM + d);
            }
            assert_true(mask[s] <= 1);
            sum += mask[s] * exp(0.7 * score);
            o += mask[s] * exp(0.7 * score) * tensor_get(way.in[2], s);
        }
        check_close(tensor_get(execute_value(way.run, way.out), t), o / sum, 1e-12);
    }
    way_clear(&way);
}

/* A gated layer core, priced and kept either way: the numbers are the same. */
static int gated_core(Way *way)
{
    SplitAttr split = {.groups = 2, .n_parts = 2, .widths = {4, 4}};
    RopeAttr rope = {.heads = 2, .head_dim = 4, .rotary_dim = 4, .base = 100, .layout = ROPE_HALF};
    AttentionAttr attr = {.heads = 2, .kv_heads = 1, .head_dim = 4, .v_dim = 4, .causal = TRUE};
    int parts[2];
    int q = way_input(way, 16), k = way_input(way, 4), v = way_input(way, 4);
    split_add(way->graph, "split", q, &split, parts);
    q = rope_add(way->graph, "q_rope", parts[0], -1, &rope);
    rope.heads = 1;
    k = rope_add(way->graph, "k_rope", k, -1, &rope);
    int o = attention_add(way->graph, "attention", q, k, v, &attr).o;
    return sigmoid_gate_add(way->graph, "gate", o, parts[1]);
}

static void test_eager_is_fused(void **state)
{
    Way a, b;
    (void)state;
    way_init(&a);
    way_init(&b);
    b.graph->eager_default = TRUE;
    way_run(&a, gated_core(&a));
    way_run(&b, gated_core(&b));
    check_ways(&a, &b, 3);
    way_clear(&a);
    way_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_selected_is_dense),
        cmocka_unit_test(test_absorbed_is_plain),
        cmocka_unit_test(test_selected_is_masked),
        cmocka_unit_test(test_eager_is_fused),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
