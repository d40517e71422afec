#include "models/hf.h"

#include <string.h>

/* One layer's place: TRUE when it is MoE. */
static gboolean layer_is_moe(HfMoe moe, int64_t layer, int64_t first, int64_t step)
{
    switch (moe) {
    case HF_MOE_EVERY:
        return TRUE;
    case HF_MOE_AFTER_DENSE:
        return layer >= first && layer % step == 0;
    case HF_MOE_STEP:
        return (layer + 1) % step == 0;
    case HF_MOE_NONE:
    case HF_MOE_PATTERN:
    default:
        return FALSE;
    }
}

static void import_places(HfImport *import)
{
    Model *model = import->model;
    HfReader *text = &import->text;
    HfMoe moe = import->family->moe;
    if (moe != HF_MOE_NONE && moe != HF_MOE_PATTERN && hf_read_mlp_types(import)) {
        static const HfKey other[] = {HF_KEY_FIRST_DENSE, HF_KEY_MOE_FREQ, HF_KEY_SPARSE_STEP, HF_KEY_MLP_ONLY};
        for (size_t i = 0; i < G_N_ELEMENTS(other); i++) {
            hf_skip(text, other[i]);
        }
        return;
    }
    int64_t first = moe == HF_MOE_AFTER_DENSE ? hf_int(text, HF_KEY_FIRST_DENSE, 0) : 0;
    int64_t step = 1;
    g_autofree gboolean *dense = g_new0(gboolean, model->n_layers);
    if (moe == HF_MOE_AFTER_DENSE) {
        step = hf_int(text, HF_KEY_MOE_FREQ, 1);
    } else if (moe == HF_MOE_STEP) {
        step = hf_int(text, HF_KEY_SPARSE_STEP, 1);
        (void)hf_flags(text, HF_KEY_MLP_ONLY, 0, model->n_layers - 1, dense);
    }
    if (step == 0) {
        hf_fail(text, moe == HF_MOE_STEP ? HF_KEY_SPARSE_STEP : HF_KEY_MOE_FREQ, "must be positive");
        step = 1;
    }
    for (int64_t i = 0; i < model->n_layers && moe != HF_MOE_PATTERN; i++) {
        model->layers[i].ffn = layer_is_moe(moe, i, first, step) && !dense[i] ? FFN_MOE : FFN_DENSE;
    }
}

static void import_dense(HfImport *import)
{
    Model *model = import->model;
    if (!model_has_ffn(model, FFN_DENSE)) {
        hf_skip(&import->text, HF_KEY_FFN); /* files without dense layers still carry a width */
        return;
    }
    int64_t width = hf_need(&import->text, HF_KEY_FFN);
    for (int64_t i = 0; i < model->n_layers; i++) {
        model->layers[i].ffn_width = model->layers[i].ffn == FFN_DENSE ? width : 0;
    }
}

static void import_score(HfImport *import)
{
    static const char *const names[] = {"softmax", "sigmoid"};
    static const char *const methods[] = {"noaux_tc", "greedy", "group_limited_greedy"};
    Model *model = import->model;
    HfReader *text = &import->text;
    const char *name = hf_string(text, HF_KEY_SCORE, NULL);
    model->router_score = import->family->score;
    if (name != NULL) {
        gboolean known = FALSE;
        for (int i = 0; i < (int)G_N_ELEMENTS(names); i++) {
            if (strcmp(names[i], name) == 0) {
                model->router_score = i == 0 ? ROUTER_SOFTMAX : ROUTER_SIGMOID;
                known = TRUE;
            }
        }
        if (!known) {
            hf_fail(text, HF_KEY_SCORE, "missing operator: router score \"%s\"; known are \"softmax\" and \"sigmoid\"",
                    name);
        }
    }
    const char *method = hf_string(text, HF_KEY_TOPK_METHOD, methods[0]);
    if (!g_strv_contains((const char *const[]){methods[0], methods[1], methods[2], NULL}, method)) {
        hf_fail(text, HF_KEY_TOPK_METHOD, "missing operator: selection method \"%s\"", method);
    }
    model->router_group_max = strcmp(method, "group_limited_greedy") == 0;
    model->router_bias_buffer = model->router_score == ROUTER_SIGMOID;
    if (!hf_bool(text, HF_KEY_ROUTING_BIAS, model->router_bias_buffer)) {
        model->router_bias_buffer = FALSE;
    }
    model->router_linear_bias = import->family->gpt_oss;
    model->router_renorm = hf_bool(text, HF_KEY_RENORM, import->family->renorm);
    model->router_scaling = hf_number(text, HF_KEY_SCALING, 1.0);
}

static void import_groups(HfImport *import)
{
    Model *model = import->model;
    HfReader *text = &import->text;
    model->router_groups = MAX(hf_int(text, HF_KEY_GROUPS, 1), 1);
    model->router_topk_groups = MAX(hf_int(text, HF_KEY_TOPK_GROUP, 1), 1);
    if (model->n_experts % model->router_groups != 0) {
        hf_fail(text, HF_KEY_GROUPS, "%" G_GINT64_FORMAT " groups do not divide %" G_GINT64_FORMAT " experts",
                model->router_groups, model->n_experts);
    } else if (model->router_topk_groups > model->router_groups ||
               model->top_k > model->n_experts / model->router_groups * model->router_topk_groups) {
        hf_fail(text, HF_KEY_TOPK_GROUP,
                "%" G_GINT64_FORMAT " of %" G_GINT64_FORMAT " groups do not hold %" G_GINT64_FORMAT
                " experts for each token",
                model->router_topk_groups, model->router_groups, model->top_k);
    }
}

/* Shared experts: merged in one MLP whose width the families say in different ways. */
static void import_shared(HfImport *import)
{
    Model *model = import->model;
    HfReader *text = &import->text;
    if (import->family->layout == HF_LAYOUT_GDN) {
        model->shared_width = hf_need(text, HF_KEY_SHARED_WIDTH);
        model->n_shared_experts = 1;
        model->shared_gate = TRUE;
        return;
    }
    if (hf_int(text, HF_KEY_SHARED_WIDTH_MINIMAX, 0) != 0) {
        hf_fail(text, HF_KEY_SHARED_WIDTH_MINIMAX, "missing operator: MiniMax's shared experts");
    }
    if (!import->family->grouped) {
        return;
    }
    model->n_shared_experts = hf_int(text, HF_KEY_SHARED, 0);
    if (model->n_shared_experts > 0 && import->family->layout == HF_LAYOUT_MAMBA) {
        model->shared_width = hf_need(text, HF_KEY_SHARED_WIDTH_NEMOTRON);
    } else {
        model->shared_width = model->n_shared_experts * model->expert_width;
    }
}

static void import_latent(HfImport *import)
{
    Model *model = import->model;
    HfReader *text = &import->text;
    HfLayout layout = import->family->layout;
    if (layout != HF_LAYOUT_KDA && layout != HF_LAYOUT_MAMBA) {
        return;
    }
    model->latent_width = hf_int(text, HF_KEY_LATENT, 0);
    if (model->latent_width == model->hidden) {
        hf_fail(text, HF_KEY_LATENT, "is the hidden size itself; leave it out");
    }
    model->latent_norm = hf_bool(text, HF_KEY_LATENT_NORM, FALSE);
    if (model->latent_norm && model->latent_width == 0) {
        hf_fail(text, HF_KEY_LATENT_NORM,
                "asks for a norm of latent experts, but routed_expert_hidden_size is missing");
    }
}

static void import_moe(HfImport *import)
{
    Model *model = import->model;
    HfReader *text = &import->text;
    model->n_experts = hf_need(text, HF_KEY_EXPERTS);
    model->top_k = hf_need(text, HF_KEY_TOP_K);
    model->expert_width = hf_need(text, import->family->expert_width);
    model->expert_bias = import->family->gpt_oss;
    if (model->top_k > model->n_experts) {
        hf_fail(text, HF_KEY_TOP_K, "%" G_GINT64_FORMAT " of only %" G_GINT64_FORMAT " experts", model->top_k,
                model->n_experts);
    }
    import_score(import);
    import_shared(import);
    import_latent(import);
    if (import->family->grouped) {
        import_groups(import);
    } else {
        model->router_groups = model->router_topk_groups = 1;
    }
}

/* Fields of experts in a model whose layers (after cutting) are all dense: known, and without influence. */
static void import_idle_moe(HfImport *import)
{
    static const HfKey idle[] = {HF_KEY_EXPERTS,    HF_KEY_TOP_K,        HF_KEY_EXPERT_WIDTH,
                                 HF_KEY_SHARED,     HF_KEY_SHARED_WIDTH, HF_KEY_SHARED_WIDTH_NEMOTRON,
                                 HF_KEY_LATENT,     HF_KEY_LATENT_NORM,  HF_KEY_GROUPS,
                                 HF_KEY_TOPK_GROUP, HF_KEY_SCORE,        HF_KEY_RENORM,
                                 HF_KEY_SCALING,    HF_KEY_TOPK_METHOD};
    for (size_t i = 0; i < G_N_ELEMENTS(idle); i++) {
        hf_skip(&import->text, idle[i]);
    }
}

void hf_read_ffn(HfImport *import)
{
    import_places(import);
    if (model_has_ffn(import->model, FFN_MOE)) {
        import_moe(import);
    } else if (import->family->moe != HF_MOE_NONE) {
        import_idle_moe(import);
    }
    import_dense(import);
}
