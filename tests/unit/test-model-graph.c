#include "tests/check.h"

#include "models/block.h"
#include "models/op.h"
#include "sim/base/json-read.h"

static Model *load(const char *name)
{
    GError *error = NULL;
    Model *model = model_load(name, NULL, &error);
    check_no_error(error);
    return model;
}

/* Both counts agree: by part over the model, and layer by layer. */
static void test_counted_twice(void **state)
{
    (void)state;
    g_auto(GStrv) names = model_preset_names();
    for (int i = 0; names[i] != NULL; i++) {
        g_autoptr(Model) model = load(names[i]);
        BlockOptions options = {.compute = DTYPE_BF16, .image_tokens = 1};
        g_autoptr(ModelGraph) graph = model_graph_new(model, &options);
        ParamCounts formula;
        ParamCounts counted;
        param_counts(model, &formula);
        model_graph_count(graph, model, &counted);
        print_message("# %s\n", names[i]);
        for (int part = 0; part < N_PARAM_PARTS; part++) {
            check_int(counted.parts[part], formula.parts[part]);
        }
        check_int(counted.total, formula.total);
        check_int(counted.active, formula.active);
        for (int64_t l = 0; l < model->n_layers; l++) {
            int64_t parts[N_PARAM_PARTS] = {0};
            int64_t whole = 0;
            param_layer_parts(model, l, parts);
            for (int part = 0; part < N_PARAM_PARTS; part++) {
                whole += parts[part];
            }
            const Graph *layer = model_graph_layer(graph, l);
            for (guint p = 0; p < layer->params->len; p++) {
                whole -= graph_param_numel(graph_param(layer, (int)p));
            }
            check_int(whole, 0);
        }
    }
}

/* Operators in legal order, every tensor made or given, layers chained through tensors of equal shape. */
static void check_graph(const Graph *graph, int64_t hidden)
{
    g_autofree gboolean *made = g_new0(gboolean, graph->tensors->len);
    for (guint i = 0; i < graph->inputs->len; i++) {
        made[g_array_index(graph->inputs, int, i)] = TRUE;
    }
    for (int o = 0; o < graph_n_ops(graph); o++) {
        const Op *op = graph_op(graph, o);
        for (int i = 0; i < op->n_inputs; i++) {
            assert_true(op->inputs[i] < 0 || made[op->inputs[i]]);
        }
        for (int i = 0; i < op->n_outputs; i++) {
            assert_false(made[op->outputs[i]]);
            made[op->outputs[i]] = TRUE;
        }
        for (int i = 0; i < op->n_params; i++) {
            assert_true(op->params[i] < 0 || graph_param(graph, op->params[i])->op == o);
        }
    }
    const GraphTensor *out = graph_tensor(graph, g_array_index(graph->outputs, int, 0));
    assert_true(out->producer >= 0);
    check_int(out->width, hidden);
}

static void test_legal(void **state)
{
    (void)state;
    g_auto(GStrv) names = model_preset_names();
    for (int i = 0; names[i] != NULL; i++) {
        g_autoptr(Model) model = load(names[i]);
        for (int variant = 0; variant < 4; variant++) {
            BlockOptions options = {.compute = DTYPE_BF16,
                                    .image_tokens = 1,
                                    .ep_size = variant == 1 ? 4 : 1,
                                    .lora = variant >= 2,
                                    .lora_rank = 8,
                                    .lora_attention = variant == 2,
                                    .lora_shared = TRUE,
                                    .lora_experts = TRUE,
                                    .lora_shared_a = variant == 3,
                                    .chunked_loss_vocab = variant == 1,
                                    .vocab_chunk = 4096,
                                    .index_loss = variant == 1 ? 1.0 : 0.0};
            g_autoptr(ModelGraph) graph = model_graph_new(model, &options);
            for (guint k = 0; k < graph->kinds->len; k++) {
                check_graph(g_ptr_array_index(graph->kinds, k), model->hidden);
            }
            check_graph(graph->embedding, model->hidden);
            check_graph(graph->head, 1);
            if (graph->vision != NULL) {
                check_graph(graph->vision, model->hidden);
            }
            if (options.lora) {
                ParamLora lora = {8, options.lora_attention, TRUE, TRUE, options.lora_shared_a};
                check_int(model_graph_count_adapters(graph), param_count_lora(model, &lora));
            }
        }
    }
}

/* Distinct layers: what differs has a graph of its own, what does not shares one. */
static const struct {
    const char *preset;
    guint kinds;
} distinct[] = {
    {"llama-3.1-405b", 1},
    {"mixtral-8x7b", 1},
    {"deepseek-v3", 2},        /* dense, MoE */
    {"gpt-oss-120b", 2},       /* with and without window */
    {"qwen3-next-80b-a3b", 2}, /* GDN, attention */
    {"kimi-linear-48b-a3b", 3},
    {"nemotron-3-nano-30b-a3b", 3},
    {"kimi-k3", 24}, /* 1 dense, 7 first layers of a block, KDA and MLA inside each of 8 blocks */
};

static void test_distinct(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(distinct); i++) {
        g_autoptr(Model) model = load(distinct[i].preset);
        BlockOptions options = {.compute = DTYPE_BF16};
        g_autoptr(ModelGraph) graph = model_graph_new(model, &options);
        print_message("# %s\n", distinct[i].preset);
        check_int(graph->kinds->len, distinct[i].kinds);
    }
}

/* Sources of attention residuals: 186 mixes over 1002 rows in K3; its bank has 8 rows at the end. */
static void test_attnres(void **state)
{
    (void)state;
    g_autoptr(Model) model = load("kimi-k3");
    BlockOptions options = {.compute = DTYPE_BF16};
    g_autoptr(ModelGraph) graph = model_graph_new(model, &options);
    int64_t mixes = 0;
    int64_t rows = 0;
    for (int64_t l = 0; l <= model->n_layers; l++) {
        const Graph *layer = l == model->n_layers ? graph->head : model_graph_layer(graph, l);
        check_int((int64_t)layer->inputs->len - (l == model->n_layers), model_n_sources(model, l));
        for (int o = 0; o < graph_n_ops(layer); o++) {
            const Op *op = graph_op(layer, o);
            if (op->kind == OP_attnres) {
                mixes++;
                rows += op->n_inputs;
            }
        }
    }
    check_int(mixes, 186);
    check_int(rows, 1002);
}

/* LoRA of a frozen embedding: nothing upstream of the first adapter needs a gradient, everything behind it does. */
static void test_needs_grad(void **state)
{
    (void)state;
    g_autoptr(Model) model = load("llama-3.1-8b");
    BlockOptions options = {.compute = DTYPE_BF16, .lora = TRUE, .lora_rank = 16, .lora_attention = TRUE};
    g_autoptr(ModelGraph) graph = model_graph_new(model, &options);
    check_int(graph->kinds->len, 2);
    check_int(graph_tensor(model_graph_layer(graph, 0), 0)->needs_grad, FALSE);
    check_int(graph_tensor(model_graph_layer(graph, 1), 0)->needs_grad, TRUE);
    options.lora_attention = FALSE;
    g_autoptr(ModelGraph) idle = model_graph_new(model, &options);
    check_int(graph_tensor(idle->head, 0)->needs_grad, FALSE);
}

/* Checkpoint names of a trained K3-shaped, a Mixtral-like and a Llama-like model. */
static const struct {
    const char *preset;
    int64_t layer;
    const char *name;
} checkpoint[] = {
    {"kimi-k3-mini", -1, "language_model.model.embed_tokens.weight"},
    {"kimi-k3-mini", -1, "language_model.model.norm.weight"},
    {"kimi-k3-mini", -1, "language_model.model.output_attn_res_proj.weight"},
    {"kimi-k3-mini", -1, "language_model.lm_head.weight"},
    {"kimi-k3-mini", 0, "language_model.model.layers.0.self_attention_res_norm.weight"},
    {"kimi-k3-mini", 0, "language_model.model.layers.0.mlp.gate_proj.weight"},
    {"kimi-k3-mini", 1, "language_model.model.layers.1.self_attn.q_conv1d.weight"},
    {"kimi-k3-mini", 1, "language_model.model.layers.1.self_attn.A_log"},
    {"kimi-k3-mini", 1, "language_model.model.layers.1.self_attn.dt_bias"},
    {"kimi-k3-mini", 1, "language_model.model.layers.1.self_attn.f_b_proj.weight"},
    {"kimi-k3-mini", 1, "language_model.model.layers.1.self_attn.o_norm.weight"},
    {"kimi-k3-mini", 1, "language_model.model.layers.1.block_sparse_moe.gate.e_score_correction_bias"},
    {"kimi-k3-mini", 1, "language_model.model.layers.1.block_sparse_moe.experts.w1.weight"},
    {"kimi-k3-mini", 1, "language_model.model.layers.1.block_sparse_moe.shared_experts.down_proj.weight"},
    {"kimi-k3-mini", 1, "language_model.model.layers.1.block_sparse_moe.routed_expert_norm.weight"},
    {"kimi-k3-mini", 3, "language_model.model.layers.3.self_attn.kv_a_proj_with_mqa.weight"},
    {"kimi-k3-mini", 3, "language_model.model.layers.3.self_attn.kv_b_proj.weight"},
    {"kimi-k3-mini", 3, "language_model.model.layers.3.self_attn.indexer.k_norm.bias"},
    {"mixtral-8x7b", 2, "model.layers.2.block_sparse_moe.gate.weight"},
    {"llama-3.1-8b", 2, "model.layers.2.mlp.up_proj.weight"},
    {"llama-3.1-8b", -1, "lm_head.weight"},
};

static gboolean graph_names(const Graph *graph, const Model *model, int64_t layer, const char *name)
{
    for (guint i = 0; i < graph->params->len; i++) {
        g_autofree char *full = model_graph_param_name(model, layer, graph_param(graph, (int)i));
        if (strcmp(full, name) == 0) {
            return TRUE;
        }
    }
    return FALSE;
}

static void test_names(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(checkpoint); i++) {
        g_autoptr(Model) model = load(checkpoint[i].preset);
        BlockOptions options = {.compute = DTYPE_BF16};
        g_autoptr(ModelGraph) graph = model_graph_new(model, &options);
        int64_t layer = checkpoint[i].layer;
        print_message("# %s\n", checkpoint[i].name);
        assert_true(layer >= 0 ? graph_names(model_graph_layer(graph, layer), model, layer, checkpoint[i].name)
                               : graph_names(graph->embedding, model, -1, checkpoint[i].name) ||
                                     graph_names(graph->head, model, -1, checkpoint[i].name));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counted_twice), cmocka_unit_test(test_legal),      cmocka_unit_test(test_distinct),
        cmocka_unit_test(test_attnres),       cmocka_unit_test(test_needs_grad), cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
