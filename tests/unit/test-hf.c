#include "tests/check.h"

#include "models/model.h"
#include "models/params.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"

/* A preset's text with replacements, as a model. */
static json_t *parse(const char *text)
{
    json_error_t where;
    json_t *value = json_loads(text, 0, &where);
    if (value == NULL) {
        print_error("%s\n", where.text);
    }
    assert_non_null(value);
    return value;
}

#define MIXTRAL                                                                                                        \
    "\"model_type\": \"mixtral\", \"hidden_size\": 64, \"num_hidden_layers\": 2, \"vocab_size\": 100, "                \
    "\"intermediate_size\": 96, \"num_attention_heads\": 4, \"num_key_value_heads\": 2"
#define MIXTRAL_MOE ", \"num_local_experts\": 8, \"num_experts_per_tok\": 2"
#define LLAMA                                                                                                          \
    "\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 2, \"vocab_size\": 100, "                  \
    "\"intermediate_size\": 96, \"num_attention_heads\": 4"
#define DEEPSEEK                                                                                                       \
    "\"model_type\": \"deepseek_v3\", \"hidden_size\": 64, \"num_hidden_layers\": 2, \"vocab_size\": 100, "            \
    "\"intermediate_size\": 96, \"num_attention_heads\": 4, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 16, "          \
    "\"qk_rope_head_dim\": 8, \"v_head_dim\": 16, \"first_k_dense_replace\": 1"
#define DEEPSEEK_MOE ", \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32"
#define KIMI                                                                                                           \
    "\"model_type\": \"kimi_linear\", \"hidden_size\": 64, \"num_hidden_layers\": 3, \"vocab_size\": 100, "            \
    "\"intermediate_size\": 96, \"num_attention_heads\": 4, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 16, "          \
    "\"qk_rope_head_dim\": 8, \"v_head_dim\": 16, \"num_experts\": 8, \"num_experts_per_token\": 2, "                  \
    "\"moe_intermediate_size\": 32"
#define LISTS                                                                                                          \
    ", \"linear_attn_config\": {\"kda_layers\": [1, 2], \"full_attn_layers\": [3], \"num_heads\": 4, \"head_dim\": "   \
    "16}"

/* Files that must be refused, and what the message has to name. */
static const struct {
    const char *config;
    const char *part;
    const char *hint;
} refused[] = {
    /* a misspelt or missing MoE field is never a dense fallback */
    {"{" MIXTRAL ", \"num_local_experts\": 8, \"num_experts_per_tokn\": 2}", "num_experts_per_tokn",
     "num_experts_per_tok"},
    {"{" MIXTRAL ", \"num_local_experts\": 8}", "num_experts_per_tok", "missing"},
    {"{" MIXTRAL "}", "n_routed_experts", "missing"},
    {"{" MIXTRAL ", \"num_local_expert\": 8, \"num_experts_per_tok\": 2}", "num_local_expert", "num_local_experts"},
    {"{" DEEPSEEK ", \"n_routed_experts\": 8, \"num_experts_per_tok\": 2}", "moe_intermediate_size", "missing"},
    {"{" LLAMA ", \"num_experts\": 8, \"num_experts_per_tok\": 2}", "num_experts", "no use of this field"},
    {"{" DEEPSEEK DEEPSEEK_MOE ", \"routed_scaling_facto\": 2.5}", "routed_scaling_facto", "routed_scaling_factor"},
    {"{" DEEPSEEK DEEPSEEK_MOE ", \"n_shared_expert\": 1}", "n_shared_expert", "n_shared_experts"},
    /* aliases that disagree */
    {"{" MIXTRAL MIXTRAL_MOE ", \"num_experts\": 16}", "num_experts", "num_local_experts"},
    {"{" MIXTRAL MIXTRAL_MOE ", \"experts_per_token\": 4}", "experts_per_token", "num_experts_per_tok"},
    /* what has no operator is named */
    {"{\"model_type\": \"mixtrall\"}", "mixtrall", "mixtral"},
    {"{\"model_type\": \"zamba9\", \"hidden_size\": 64}", "zamba9", "known:"},
    {"{\"hidden_size\": 64}", "model_type", "missing"},
    {"{" LLAMA ", \"hidden_act\": \"xielu\"}", "xielu", "silu"},
    {"{" LLAMA ", \"layer_types\": [\"full_attention\", \"ring_attention\"]}", "ring_attention", "layer 2"},
    {"{" LLAMA ", \"layer_types\": [\"ring_attention\", \"mega\"]}", "\"ring_attention\" (layer 1), \"mega\" (layer 2)",
     "mega"},
    {"{" LLAMA ", \"attn_type_list\": [1, 0]}", "attn_type_list", "layer 2"},
    {"{" DEEPSEEK DEEPSEEK_MOE ", \"mlp_layer_types\": [\"dense\", \"spars\"]}", "spars", "layer 2"},
    {"{" DEEPSEEK DEEPSEEK_MOE ", \"scoring_func\": \"relu\"}", "relu", "sigmoid"},
    {"{" DEEPSEEK DEEPSEEK_MOE ", \"topk_method\": \"hash\"}", "hash", "missing operator"},
    {"{" LLAMA ", \"num_memory_slots\": 64}", "num_memory_slots", "no operator"},
    {"{" LLAMA ", \"retrieval_config\": {\"width\": 3}}", "retrieval_config", "no operator"},
    {"{" LLAMA ", \"mlp_bias\": true}", "mlp_bias", "no operator"},
    {"{" DEEPSEEK DEEPSEEK_MOE ", \"index_topk\": 64}", "index_topk", "no use of this field"},
    /* sizes that do not fit */
    {"{" MIXTRAL ", \"num_local_experts\": 8, \"num_experts_per_tok\": 9}", "9 of only 8", "num_experts_per_tok"},
    {"{" MIXTRAL MIXTRAL_MOE ", \"head_dim\": -4}", "head_dim", "-4"},
    {"{" MIXTRAL MIXTRAL_MOE ", \"head_dim\": 0}", "head_dim", "0 is no width of a head"},
    {"{" LLAMA ", \"num_key_value_heads\": 3}", "num_key_value_heads", "3"},
    {"{" LLAMA ", \"hidden_size\": 0.5}", "hidden_size", ""},
    {"{" DEEPSEEK DEEPSEEK_MOE ", \"n_group\": 3}", "n_group", "3 groups"},
    {"{" DEEPSEEK DEEPSEEK_MOE ", \"n_group\": 8, \"topk_group\": 1}", "topk_group", "1 of 8"},
    /* layer lists */
    {"{" KIMI "}", "linear_attn_config", "missing"},
    {"{" KIMI ", \"linear_attn_config\": {\"kda_layers\": [1, 2], \"full_attn_layers\": [2, 3], \"num_heads\": 4, "
     "\"head_dim\": 16}}",
     "layer 2", "both"},
    {"{" KIMI
     ", \"linear_attn_config\": {\"kda_layers\": [1], \"full_attn_layers\": [3], \"num_heads\": 4, \"head_dim\": 16}}",
     "layer 2", "none"},
    {"{" KIMI ", \"linear_attn_config\": {\"kda_layers\": [0, 1, 2], \"full_attn_layers\": [3], \"num_heads\": 4, "
     "\"head_dim\": 16}}",
     "kda_layers", "1..3"},
    {"{" KIMI LISTS
     ", \"dsa_config\": {\"index_n_heads\": 2, \"index_head_dim\": 16, \"index_topk\": 8, \"dsa_layers\": [1]}}",
     "layer 1", "full-attention"},
    {"{" KIMI LISTS ", \"dsa_config\": {\"index_n_heads\": 2, \"index_topk\": 8}}", "index_head_dim", "missing"},
    {"{" KIMI LISTS
     ", \"index_topk\": 4, \"dsa_config\": {\"index_n_heads\": 2, \"index_head_dim\": 16, \"index_topk\": 8}}",
     "index_topk", "dsa_config"},
    {"{\"model_type\": \"kimi_k3\"}", "text_config", "missing"},
    {"{\"model_type\": \"kimi_k3\", \"text_config\": {\"model_type\": \"kimi_k3\"}}", "kimi_k3", "known"},
    {"{\"model_type\": \"kimi_k3\", \"tie_word_embeddings\": true, \"text_config\": {" KIMI LISTS "}}",
     "tie_word_embeddings", "differs"},
    {"[1]", "", ""},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(refused); i++) {
        g_autoptr(json_t) config = parse(refused[i].config);
        GError *error = NULL;
        g_autoptr(Model) model = model_from_json(config, "case.json", NULL, &error);
        if (model != NULL) {
            print_error("case %zu was taken: %s\n", i, refused[i].config);
        }
        assert_null(model);
        assert_non_null(error);
        check_contains(error->message, "case.json");
        check_contains(error->message, refused[i].part);
        check_error(&error, MOESIM_ERROR_INPUT, refused[i].hint);
    }
}

/* Files that must be taken, though they carry what a loader, a tokenizer or a generator wants. */
static const char *const taken[] = {
    "{" DEEPSEEK DEEPSEEK_MOE ", \"mlp_layer_types\": [\"dense\", \"sparse\"]}",
    "{" MIXTRAL MIXTRAL_MOE
    ", \"attn_type_list\": [1, 1], \"mlp_intermediate_size\": 8192, \"layernorm_mlp_beta\": 1.0}",
    "{" LLAMA
    ", \"architectures\": [\"X\"], \"auto_map\": {\"a\": \"b\"}, \"eos_token_id\": [1, 2], \"rope_scaling\": null}",
    "{" LLAMA
    ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}, \"torch_dtype\": \"bfloat16\", \"dtype\": \"bfloat16\"}",
    "{" LLAMA ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5, \"factor\": 2}}",
    "{" LLAMA ", \"quantization_config\": {\"num_bits\": 4, \"targets\": [1]}, \"generation_config\": {\"top_k\": 50}}",
    "{" LLAMA
    ", \"top_k\": 50, \"max_length\": 20, \"num_beams\": 1, \"transformers_version\": \"5.0\", \"use_cache\": true}",
    "{" LLAMA
    ", \"num_labels\": 2, \"id2label\": {\"0\": \"A\"}, \"pretraining_tp\": 1, \"my_remark\": \"of our own\"}",
    "{" LLAMA ", \"n_routed_experts\": null, \"num_experts\": 0, \"attention_bias\": false, \"sliding_window\": null}",
    "{" MIXTRAL MIXTRAL_MOE
    ", \"router_aux_loss_coef\": 0.02, \"output_router_logits\": false, \"experts_per_token\": 2}",
    "{" DEEPSEEK DEEPSEEK_MOE
    ", \"ep_size\": 1, \"aux_loss_alpha\": 0.001, \"seq_aux\": true, \"num_key_value_heads\": 4}",
};

static void test_taken(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(taken); i++) {
        g_autoptr(json_t) config = parse(taken[i]);
        g_autoptr(GError) error = NULL;
        g_autoptr(Model) model = model_from_json(config, "case", NULL, &error);
        check_no_error(error);
    }
}

static void test_traps(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) k3 = model_load("kimi-k3", NULL, &error);
    g_autoptr(Model) linear = model_load("kimi-linear-48b-a3b", NULL, &error);
    g_autoptr(Model) nano = model_load("nemotron-3-nano-30b-a3b", NULL, &error);
    g_autoptr(Model) ultra = model_load("nemotron-3-ultra-550b-a55b", NULL, &error);
    g_autoptr(Model) oss = model_load("gpt-oss-120b", NULL, &error);
    g_autoptr(Model) mixtral = model_load("mixtral-8x7b", NULL, &error);
    g_autoptr(Model) olmoe = model_load("olmoe-1b-7b", NULL, &error);
    g_autoptr(Model) next = model_load("qwen3-next-80b-a3b", NULL, &error);
    g_autoptr(Model) glm = model_load("glm-4.5", NULL, &error);
    check_no_error(error);
    check_int(k3->latent_width, 3584); /* counted at the hidden size it would be a model twice as large */
    check_int(k3->vision_head_dim, 128);
    check_int(k3->layers[91].mixer, MIXER_MLA); /* the 92nd and the 93rd */
    check_int(k3->layers[92].mixer, MIXER_MLA);
    check_int(k3->layers[90].mixer, MIXER_KDA);
    check_int(k3->rope, ROPE_NONE);
    check_string(k3->prefix, "language_model.model.");
    check_int(linear->q_lora_rank, 0);
    check_int(linear->rope_dim + linear->nope_dim, 192);
    check_int(nano->router_groups, 1);
    check_int(nano->mamba_groups, 8);
    check_int(nano->shared_width, 3712);
    check_int(ultra->n_layers, 108);
    check_int(ultra->latent_width, 2048);
    check_int(oss->layers[0].sliding_window, 128);
    check_int(oss->layers[1].sliding_window, 0);
    check_int(oss->router_bias_buffer, FALSE);
    check_int(oss->expert_width, 2880);
    check_int(mixtral->expert_width, 14336);
    check_int(mixtral->head_dim, 128);
    check_int(olmoe->expert_width, 1024);
    check_int(olmoe->router_renorm, FALSE);
    check_int(olmoe->qk_norm, QK_NORM_FULL);
    check_int(next->layers[3].mixer, MIXER_GQA);
    check_int(next->layers[2].mixer, MIXER_GDN);
    check_int(next->rotary_dim, 64);
    check_int(glm->layers[2].ffn, FFN_DENSE);
    check_int(glm->layers[3].ffn, FFN_MOE);
    check_int(glm->qkv_bias, TRUE);
    check_int(glm->o_bias, FALSE);
}

/* Model shapes of the measured steps, with the parameters that were counted there. */
static const struct {
    const char *file;
    int64_t params;
    QkNorm qk_norm;
    gboolean bias_buffer;
    int64_t shared_width;
} measured[] = {
    {"kda-moe-64e", 5130996864, QK_NORM_NONE, FALSE, 2816},    {"llama-d2048", 1104218112, QK_NORM_NONE, FALSE, 0},
    {"llama-d4096", 2795573248, QK_NORM_NONE, FALSE, 0},       {"moe-128e", 5607294976, QK_NORM_NONE, FALSE, 0},
    {"moe-64e-shared", 5122328576, QK_NORM_NONE, FALSE, 2816}, {"moe-8e", 4615958528, QK_NORM_NONE, FALSE, 0},
};

static void test_measured(void **state)
{
    (void)state;
    const char *root = g_getenv("MOESIM_SOURCE_ROOT");
    for (size_t i = 0; i < G_N_ELEMENTS(measured); i++) {
        g_autofree char *path =
            g_strdup_printf("%s/tests/reference/models/%s.json", root == NULL ? "." : root, measured[i].file);
        g_autoptr(GError) error = NULL;
        g_autoptr(Model) model = model_load(path, NULL, &error);
        check_no_error(error);
        ParamCounts counts;
        param_counts(model, &counts);
        check_string(model->name, measured[i].file);
        check_int(counts.total, measured[i].params);
        check_int(model->qk_norm, measured[i].qk_norm);
        check_int(model->router_bias_buffer, measured[i].bias_buffer);
        check_int(model->shared_width, measured[i].shared_width);
        check_int(model->conv_kernel, 0);
    }
}

/* Overrides: preset, text of the overrides, and either what the model then has or what the message names. */
static const struct {
    const char *preset;
    const char *overrides;
    int64_t layers; /* 0: refused */
    const char *part;
} overridden[] = {
    {"kimi-k3", "{\"num_hidden_layers\": 8}", 8, NULL},
    {"kimi-k3.1-pro", "{\"num_hidden_layers\": 3}", 3, NULL}, /* no full-attention layer is left, and no indexer */
    {"kimi-k3", "{\"num_hidden_layers\": 94}", 0, "num_hidden_layers"},
    {"kimi-k3", "{\"num_hidden_layer\": 8}", 0, "num_hidden_layers"},
    {"kimi-k3", "{\"num_experts\": 448}", 93, NULL}, /* an alias of the name in the file */
    {"kimi-k3", "{\"linear_attn_config\": {\"short_conv_kernel_size\": 0}}", 93, NULL},
    {"kimi-k3", "{\"linear_attn_config\": {\"kernel\": 0}}", 0, "linear_attn_config.kernel"},
    {"nemotron-3-ultra-550b-a55b", "{\"num_hidden_layers\": 10}", 10, NULL},
    {"nemotron-3-super-120b-a12b", "{\"num_hidden_layers\": 10}", 10, NULL},
    {"gpt-oss-120b", "{\"num_hidden_layers\": 5}", 5, NULL},
    {"gpt-oss-120b", "{\"num_hidden_layers\": 37}", 0, "36"},
    {"llama-3.1-8b", "{\"num_hidden_layers\": 64}", 64, NULL},
    {"deepseek-v3", "{\"num_hidden_layers\": 2}", 2, NULL}, /* only dense layers are left */
    {"deepseek-v3", "{\"num_hidden_layers\": \"2\"}", 0, "num_hidden_layers"},
    {"deepseek-v3", "[]", 0, "object"},
};

static void test_overrides(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(overridden); i++) {
        g_autoptr(json_t) overrides = parse(overridden[i].overrides);
        GError *error = NULL;
        g_autoptr(Model) model = model_load(overridden[i].preset, overrides, &error);
        if (overridden[i].layers == 0) {
            assert_null(model);
            check_error(&error, MOESIM_ERROR_INPUT, overridden[i].part);
        } else {
            check_no_error(error);
            check_int(model->n_layers, overridden[i].layers);
            check_int(model->n_experts > 0, model_has_ffn(model, FFN_MOE));
            check_int(model->index_topk > 0, model_has_indexer(model));
        }
    }
    g_autoptr(json_t) fewer = parse("{\"num_experts\": 448}");
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_load("kimi-k3", fewer, &error);
    check_no_error(error);
    check_int(model->n_experts, 448);
}

static void test_names(void **state)
{
    (void)state;
    GError *error = NULL;
    g_autoptr(Model) model = model_load("kimi-k4", NULL, &error);
    assert_null(model);
    check_error(&error, MOESIM_ERROR_INPUT, "did you mean \"kimi-k3\"");
    model = model_load("no/such/config.json", NULL, &error);
    assert_null(model);
    check_error(&error, MOESIM_ERROR_IO, "no/such/config.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_taken),     cmocka_unit_test(test_traps),
        cmocka_unit_test(test_measured), cmocka_unit_test(test_overrides), cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
