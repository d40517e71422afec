#include "tests/check.h"

#include "models/describe.h"
#include "models/flops.h"
#include "sim/base/json-read.h"

static Model *load(const char *name, const char *overrides)
{
    GError *error = NULL;
    g_autoptr(json_t) value = overrides == NULL ? NULL : json_loads(overrides, 0, NULL);
    Model *model = model_load(name, value, &error);
    check_no_error(error);
    return model;
}

static ModelFacts facts_of(const Model *model, int64_t seq_len)
{
    ModelFacts facts;
    model_facts(model, seq_len, &facts);
    return facts;
}

/* Forward FLOPs per token of the language model, hand-summed with four digits. */
static const struct {
    const char *preset;
    int64_t seq_len;
    double forward;
} summed[] = {
    {"kimi-k3", 4096, 2.123e11},         {"kimi-k3", 32768, 2.334e11},         {"kimi-k3", 131072, 3.059e11},
    {"kimi-k3", 1048576, 9.824e11},      {"kimi-k3.1-pro", 4096, 2.177e11},    {"kimi-k3.1-pro", 32768, 2.228e11},
    {"kimi-k3.1-pro", 131072, 2.328e11}, {"kimi-k3.1-pro", 1048576, 3.238e11},
};

static void test_summed(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(summed); i++) {
        g_autoptr(Model) model = load(summed[i].preset, NULL);
        check_close(facts_of(model, summed[i].seq_len).flops.forward, summed[i].forward, 1e-3);
    }
}

/* Every matrix counts two per weight and token; the lookup nothing; attention its causal pairs. */
static void test_dense(void **state)
{
    (void)state;
    static const char *const presets[] = {"llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"};
    for (size_t i = 0; i < G_N_ELEMENTS(presets); i++) {
        g_autoptr(Model) model = load(presets[i], NULL);
        ModelFacts facts = facts_of(model, 8192);
        int64_t matrices = facts.params.active_without_embedding - facts.params.parts[PARAM_PART_NORMS];
        double pairs = 8193 / 2.0; /* per token */
        double per_pair = 4.0 * (double)(model->n_heads * model->head_dim);
        double rows =
            (double)(model->n_heads * (model->head_dim + 2)); /* division and log-sum-exp of attention's rows */
        check_close(facts.flops.by_op[OP_embedding].forward, 0, 0);
        check_close(facts.flops.by_op[OP_linear].forward, 2.0 * (double)matrices, 1e-12);
        check_close(facts.flops.by_op[OP_attention].forward, (double)model->n_layers * (per_pair * pairs + rows),
                    1e-12);
        check_close(facts.flops.by_op[OP_linear].backward, 4.0 * (double)matrices, 1e-12);
    }
}

static void test_head_and_tied_embedding(void **state)
{
    (void)state;
    g_autoptr(Model) untied = load("llama-3.1-8b", NULL);
    g_autoptr(Model) tied = load("llama-3.1-8b", "{\"tie_word_embeddings\": true}");
    g_autoptr(Model) wide = load("llama-3.1-8b", "{\"vocab_size\": 128257}");
    ModelFacts a = facts_of(untied, 4096);
    ModelFacts b = facts_of(tied, 4096);
    ModelFacts c = facts_of(wide, 4096);
    check_close(b.flops.forward, a.flops.forward, 0); /* the product is made all the same */
    check_int(a.params.total - b.params.total, INT64_C(128256) * 4096);
    check_close(c.flops.forward - a.flops.forward, 2.0 * 4096, 1e-3); /* one more word */
}

/* Experts: as many as a token chooses, of their own width, and of the latent width where there is one. */
static void test_moe(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        double layers, top_k, input, width;
    } cases[] = {
        {"kimi-k3", 92, 16, 3584, 3072},        {"mixtral-8x7b", 32, 2, 4096, 14336},
        {"qwen3-235b-a22b", 94, 8, 4096, 1536}, {"deepseek-v3", 58, 8, 7168, 2048},
        {"olmoe-1b-7b", 16, 8, 2048, 1024},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Model) model = load(cases[i].preset, NULL);
        ModelFacts facts = facts_of(model, 4096);
        double want = cases[i].layers * cases[i].top_k * 3 * 2 * cases[i].input * cases[i].width;
        check_close(facts.flops.by_op[OP_grouped_gemm].forward, want, 1e-12);
        check_close(facts.flops.by_op[OP_grouped_gemm].backward, 2 * want, 1e-12);
    }
}

/* A window of w tokens: the first w see all before them, the others w. */
static void test_window(void **state)
{
    (void)state;
    static const int64_t lengths[] = {64, 128, 129, 4096};
    for (size_t i = 0; i < G_N_ELEMENTS(lengths); i++) {
        g_autoptr(Model) model = load("gpt-oss-120b", NULL);
        int64_t t = lengths[i];
        int64_t w = MIN(t, 128);
        double all = (double)t * (double)(t + 1) / 2;
        double seen = (double)w * (double)(w + 1) / 2 + (double)(t - w) * (double)w;
        double per_pair = 4.0 * 64 * 64;
        double rows = (double)t * 64 * (64 + 2 + 4); /* a sink adds its part of the softmax */
        double want = 18 * (per_pair * (all + seen) + 2 * rows) / (double)t;
        check_close(facts_of(model, t).flops.by_op[OP_attention].forward, want, 1e-12);
    }
}

/* Gates, linear attention and indexers are there, with what they add. */
static void test_terms(void **state)
{
    (void)state;
    g_autoptr(Model) next = load("qwen3-next-80b-a3b", NULL);
    ModelFacts facts = facts_of(next, 4096);
    check_int(facts.flops.by_op[OP_gdn].n_ops, 36);
    check_int(facts.flops.by_op[OP_sigmoid_gate].n_ops, 12 + 48); /* attention output, shared experts */
    assert_true(facts.flops.by_op[OP_gdn].forward > 36.0 * 32 * 6 * 128 * 128);
    g_autoptr(Model) k3 = load("kimi-k3", NULL);
    facts = facts_of(k3, 4096);
    check_close(facts.flops.by_op[OP_kda].forward, 69 * 12582912.0,
                0.05); /* gates and decays on top of the solve form */
    g_autoptr(Model) k31 = load("kimi-k3.1-pro", NULL);
    facts = facts_of(k31, 4096);
    check_close(facts.flops.by_op[OP_dsa_indexer].forward, 24 * 16.9e6, 5e-3);
    check_close(facts.flops.by_op[OP_sparse_attention].forward, 24 * 346e6, 5e-3);
    g_autoptr(Model) nano = load("nemotron-3-nano-30b-a3b", NULL);
    check_int(facts_of(nano, 4096).flops.by_op[OP_mamba2].n_ops, 23);
}

/* The vision tower per patch: its matrices, and full attention inside an image; then the projector per merged patch. */
static void test_vision(void **state)
{
    (void)state;
    g_autoptr(Model) model = load("kimi-k3", NULL);
    BlockOptions options = {.compute = DTYPE_BF16, .image_tokens = 256};
    g_autoptr(ModelGraph) graph = model_graph_new(model, &options);
    RowCounts rows = model_row_counts(model, 4096);
    OpFlops by_op[N_OPS] = {{0}};
    rows.rows[ROWS_PATCHES] = 1024;
    rows.rows[ROWS_IMAGE_TOKENS] = 256;
    graph_flops(graph->vision, &rows, 1, by_op);
    check_close(by_op[OP_linear].forward, 1024 * 2.0 * 27 * 14680064 + 256 * 2.0 * (4096.0 * 4096 + 4096.0 * 7168),
                1e-12);
    check_close(by_op[OP_attention].forward, 1024 * 27 * 4.0 * 1536 * 1024, 1e-3);
}

static void test_pattern(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        const char *overrides;
        const char *pattern;
    } cases[] = {
        {"llama-3.1-8b", NULL, "32 x gqa+dense"},
        {"deepseek-v3", NULL, "3 x mla+dense, 58 x mla+moe"},
        {"deepseek-v3", "{\"num_hidden_layers\": 2}", "2 x mla+dense"},
        {"gpt-oss-120b", NULL, "18 x (gqa[128]+moe, gqa+moe)"},
        {"qwen3-next-80b-a3b", NULL, "12 x (3 x gdn+moe, gqa+moe)"},
        {"kimi-k3", "{\"num_hidden_layers\": 4}", "kda+dense, 2 x kda+moe, mla+moe"},
        {"deepseek-v3.2-exp", NULL, "3 x mla[dsa]+dense, 58 x mla[dsa]+moe"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Model) model = load(cases[i].preset, cases[i].overrides);
        g_autofree char *pattern = model_layer_pattern(model);
        check_string(pattern, cases[i].pattern);
    }
}

static void test_json(void **state)
{
    (void)state;
    g_autoptr(Model) model = load("kimi-k3", NULL);
    ModelFacts facts = facts_of(model, 4096);
    g_autoptr(json_t) object = model_facts_to_json(model, &facts);
    json_t *params = json_object_get(object, "parameters");
    check_int(json_integer_value(json_object_get(params, "total")), 2779931834976);
    check_int(json_integer_value(json_object_get(params, "active_without_embedding")), 104189612640);
    const char *name;
    json_t *value;
    int64_t sum = 0;
    json_object_foreach (json_object_get(params, "by_operator"), name, value) {
        sum += json_integer_value(value);
    }
    check_int(sum, 2779931834976);
    check_int((int64_t)json_array_size(json_object_get(object, "by_layer")), 93);
    check_close(json_number_value(json_object_get(json_object_get(object, "flops_per_token"), "forward")),
                facts.flops.forward, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_summed), cmocka_unit_test(test_dense),   cmocka_unit_test(test_head_and_tied_embedding),
        cmocka_unit_test(test_moe),    cmocka_unit_test(test_window),  cmocka_unit_test(test_terms),
        cmocka_unit_test(test_vision), cmocka_unit_test(test_pattern), cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
