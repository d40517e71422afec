#include "models/hf.h"

#include <math.h>
#include <string.h>

#include "models/ops/attnres.h"
#include "sim/base/error.h"

static const HfFamily families[] = {
#define HF(id, ...) {.model_type = #id, __VA_ARGS__},
#include "models/hf.def"
#undef HF
};

const HfFamily *hf_family(const char *model_type)
{
    for (size_t i = 0; i < G_N_ELEMENTS(families); i++) {
        if (strcmp(families[i].model_type, model_type) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

static void import_layer_count(HfImport *import)
{
    Model *model = import->model;
    const char *pattern = hf_string(&import->text, HF_KEY_PATTERN, NULL);
    json_t *types = hf_words(import, HF_KEY_BLOCK_TYPES);
    int64_t listed = pattern != NULL ? (int64_t)strlen(pattern) : (int64_t)json_array_size(types);
    if (import->family->layout != HF_LAYOUT_MAMBA) {
        listed = 0;
    }
    if (listed > 0 && hf_find(&import->text, HF_KEY_LAYERS) == NULL) {
        model->n_layers = listed;
    } else {
        model->n_layers = hf_need(&import->text, HF_KEY_LAYERS);
    }
    if (listed > 0 && listed != model->n_layers) {
        hf_fail(&import->text, HF_KEY_LAYERS,
                "%" G_GINT64_FORMAT " layers, but the layer pattern has %" G_GINT64_FORMAT, model->n_layers, listed);
    }
    if (model->n_layers > 100000) {
        hf_fail(&import->text, HF_KEY_LAYERS, "more than 100000 layers");
        model->n_layers = 1;
    }
    model->layers = g_new0(ModelLayer, model->n_layers);
}

static void import_activation(HfImport *import)
{
    static const struct {
        const char *name;
        ActivationKind kind;
        gboolean ungated;
    } known[] = {
        {"silu", ACTIVATION_SWIGLU, FALSE},
        {"swish", ACTIVATION_SWIGLU, FALSE},
        {"situ", ACTIVATION_SITU, FALSE},
        {"relu2", ACTIVATION_RELU2, TRUE},
    };
    Model *model = import->model;
    gboolean mamba = import->family->layout == HF_LAYOUT_MAMBA;
    const char *name = hf_string(&import->text, HF_KEY_ACT, mamba ? "relu2" : "silu");
    for (size_t i = 0; i < G_N_ELEMENTS(known); i++) {
        if (strcmp(known[i].name, name) == 0 && known[i].ungated == mamba) {
            model->activation = import->family->gpt_oss ? ACTIVATION_GPTOSS : known[i].kind;
            model->ungated_mlp = known[i].ungated;
            if (model->activation == ACTIVATION_SITU) {
                model->situ_beta = hf_number(&import->text, HF_KEY_SITU_BETA, 4.0);
                model->situ_linear_beta = hf_number(&import->text, HF_KEY_SITU_LINEAR_BETA, 0.0);
            }
            return;
        }
    }
    hf_fail(&import->text, HF_KEY_ACT, "missing operator: activation \"%s\"; %s models are known with %s", name,
            import->family->model_type, mamba ? "\"relu2\"" : "\"silu\" and \"situ\"");
}

static void import_rope(HfImport *import)
{
    Model *model = import->model;
    HfReader parameters;
    hf_reader_enter(&parameters, &import->text, HF_KEY_ROPE_PARAMETERS);
    double base = 10000.0;
    double frac = 1.0;
    if (parameters.object != NULL) {
        base = hf_number(&parameters, HF_KEY_ROPE_THETA, base);
        frac = hf_number(&parameters, HF_KEY_ROTARY_FRAC, frac);
        const char *key; /* the rest scales frequencies, which no shape depends on */
        for (size_t i = 0; (key = json_object_key(parameters.object, i)) != NULL; i++) {
            json_object_ignore(parameters.object, key);
        }
        json_object_end(parameters.object);
    }
    hf_reader_clear(&parameters);
    model->rope = import->family->rope;
    model->rope_base = hf_number(&import->text, HF_KEY_ROPE_THETA, base);
    frac = hf_number(&import->text, HF_KEY_ROTARY_FRAC, frac);
    int64_t whole = model->rope_dim > 0 ? model->rope_dim : model->head_dim;
    model->rotary_dim = hf_int(&import->text, HF_KEY_ROTARY_DIM, (int64_t)llround((double)whole * frac));
    gboolean nope = import->family->layout == HF_LAYOUT_KDA && hf_bool(&import->text, HF_KEY_MLA_NOPE, FALSE);
    if (nope || (!model_has_mixer(model, MIXER_GQA) && !model_has_mixer(model, MIXER_MLA))) {
        model->rope = ROPE_NONE;
    }
    if (model->rope == ROPE_NONE) {
        model->rotary_dim = 0;
    } else if (model->rotary_dim < 2 || model->rotary_dim > whole || model->rotary_dim % 2 != 0) {
        hf_fail(&import->text, HF_KEY_ROTARY_DIM,
                "%" G_GINT64_FORMAT " rotated dimensions do not fit a head of %" G_GINT64_FORMAT, model->rotary_dim,
                whole);
    }
}

static void import_gqa(HfImport *import)
{
    Model *model = import->model;
    HfReader *text = &import->text;
    const HfFamily *family = import->family;
    model->n_heads = hf_need(text, HF_KEY_HEADS);
    model->n_kv_heads = hf_int(text, HF_KEY_KV_HEADS, model->n_heads);
    model->head_dim = hf_int(text, HF_KEY_HEAD_DIM, 0);
    if (model->head_dim == 0 && hf_find(text, HF_KEY_HEAD_DIM) != NULL) {
        hf_fail(text, HF_KEY_HEAD_DIM, "0 is no width of a head; leave it out for hidden size / heads");
    }
    if (model->head_dim == 0) {
        if (model->hidden % model->n_heads != 0) {
            hf_fail(text, HF_KEY_HEADS,
                    "%" G_GINT64_FORMAT " heads do not divide the hidden size %" G_GINT64_FORMAT
                    " and head_dim is missing",
                    model->n_heads, model->hidden);
        }
        model->head_dim = MAX(model->hidden / model->n_heads, 1);
    }
    if (model->n_kv_heads == 0 || model->n_heads % model->n_kv_heads != 0) {
        hf_fail(text, HF_KEY_KV_HEADS, "%" G_GINT64_FORMAT " does not divide the %" G_GINT64_FORMAT " query heads",
                model->n_kv_heads, model->n_heads);
    }
    gboolean bias = hf_bool(text, HF_KEY_ATTN_BIAS, family->gpt_oss);
    model->qkv_bias = bias || family->qkv_bias_always;
    model->o_bias = bias && (family->o_bias || family->gpt_oss);
    model->attention_sinks = family->gpt_oss;
    gboolean normed = hf_bool(text, HF_KEY_QK_NORM, !family->qk_norm_asked);
    model->qk_norm = !normed ? QK_NORM_NONE : family->qk_norm_asked ? QK_NORM_HEAD : family->qk_norm;
    const char *type = hf_string(text, HF_KEY_QK_NORM_TYPE, "per_layer");
    if (strcmp(type, "per_layer") != 0) {
        hf_fail(text, HF_KEY_QK_NORM_TYPE, "missing operator: QK norm \"%s\"; only \"per_layer\" is known", type);
    }
}

static void import_mla(HfImport *import)
{
    Model *model = import->model;
    HfReader *text = &import->text;
    hf_skip(text, HF_KEY_HEAD_DIM); /* files carry one that MLA does not use */
    hf_skip(text, HF_KEY_KV_HEADS);
    hf_only(text, HF_KEY_ATTN_BIAS, FALSE, "biases of MLA projections");
    model->n_heads = hf_need(text, HF_KEY_HEADS);
    model->q_lora_rank = hf_int(text, HF_KEY_Q_RANK, 0);
    model->kv_lora_rank = hf_need(text, HF_KEY_KV_RANK);
    model->nope_dim = hf_need(text, HF_KEY_NOPE_DIM);
    model->rope_dim = hf_need(text, HF_KEY_ROPE_DIM);
    model->v_dim = hf_need(text, HF_KEY_V_DIM);
    int64_t qk = model->nope_dim + model->rope_dim;
    if (hf_int(text, HF_KEY_QK_DIM, qk) != qk) {
        hf_fail(text, HF_KEY_QK_DIM, "is not qk_nope_head_dim + qk_rope_head_dim = %" G_GINT64_FORMAT, qk);
    }
    model->mla_gate = hf_bool(text, HF_KEY_MLA_GATE, FALSE);
}

/* The indexer's fields, from dsa_config or beside it. */
static int64_t import_index_field(HfImport *import, HfReader *nested, HfKey key)
{
    const char *flat = hf_find(&import->text, key);
    const char *inner = nested->object == NULL ? NULL : hf_find(nested, key);
    if (flat != NULL && inner != NULL && hf_int(&import->text, key, 0) != hf_int(nested, key, 0)) {
        hf_fail(&import->text, key, "differs from dsa_config.%s; keep one of them", inner);
    }
    return inner != NULL ? hf_need(nested, key) : hf_need(&import->text, key);
}

static void import_indexer(HfImport *import)
{
    Model *model = import->model;
    HfReader nested;
    hf_reader_enter(&nested, &import->text, HF_KEY_DSA);
    gboolean given = nested.object != NULL || hf_find(&import->text, HF_KEY_INDEX_TOPK) != NULL ||
                     hf_find(&import->text, HF_KEY_INDEX_HEADS) != NULL ||
                     hf_find(&import->text, HF_KEY_INDEX_DIM) != NULL;
    if (given || import->family->indexer == HF_INDEXER_ALWAYS) {
        gboolean turned = import->family->indexer == HF_INDEXER_ALWAYS;
        HfReader *lists = nested.object != NULL ? &nested : &import->text;
        g_autofree gboolean *listed = g_new0(gboolean, model->n_layers);
        model->index_heads = import_index_field(import, &nested, HF_KEY_INDEX_HEADS);
        model->index_dim = import_index_field(import, &nested, HF_KEY_INDEX_DIM);
        model->index_topk = import_index_field(import, &nested, HF_KEY_INDEX_TOPK);
        model->index_rope = hf_bool(lists, HF_KEY_INDEX_ROPE, turned);
        gboolean some = hf_flags(lists, HF_KEY_DSA_LAYERS, 1, model->n_layers, listed);
        for (int64_t i = 0; i < model->n_layers; i++) {
            model->layers[i].has_indexer = model->layers[i].mixer == MIXER_MLA && (!some || listed[i]);
            if (some && listed[i] && model->layers[i].mixer != MIXER_MLA) {
                hf_fail(lists, HF_KEY_DSA_LAYERS, "layer %" G_GINT64_FORMAT " is not a full-attention layer", i + 1);
            }
        }
    }
    hf_reader_leave(&nested);
}

static void import_kda_layers(HfImport *import, HfReader *linear)
{
    Model *model = import->model;
    g_autofree gboolean *kda = g_new0(gboolean, model->n_layers);
    g_autofree gboolean *full = g_new0(gboolean, model->n_layers);
    (void)hf_flags(linear, HF_KEY_KDA_LAYERS, 1, model->n_layers, kda);
    (void)hf_flags(linear, HF_KEY_FULL_LAYERS, 1, model->n_layers, full);
    for (int64_t i = 0; i < model->n_layers; i++) {
        if (kda[i] == full[i]) {
            hf_fail(linear, HF_KEY_KDA_LAYERS,
                    "layer %" G_GINT64_FORMAT " stands in %s of kda_layers and full_attn_layers", i + 1,
                    kda[i] ? "both" : "none");
            return;
        }
        model->layers[i].mixer = kda[i] ? MIXER_KDA : MIXER_MLA;
    }
}

static void import_kda(HfImport *import)
{
    Model *model = import->model;
    HfReader linear;
    hf_reader_enter(&linear, &import->text, HF_KEY_LINEAR_ATTN);
    if (linear.object == NULL) {
        hf_fail(&import->text, HF_KEY_LINEAR_ATTN, "missing; a %s model needs it", import->family->model_type);
    } else {
        import_kda_layers(import, &linear);
        model->lin_heads = model->lin_value_heads = hf_need(&linear, HF_KEY_LIN_HEADS);
        model->lin_key_dim = model->lin_value_dim = hf_need(&linear, HF_KEY_HEAD_DIM);
        model->conv_kernel = hf_int(&linear, HF_KEY_LIN_CONV, 4);
        model->kda_full_gate = hf_bool(&linear, HF_KEY_LIN_FULL_GATE, FALSE);
        model->kda_gate_bound = hf_number(&linear, HF_KEY_LIN_BOUND, 0.0);
        if (model->kda_gate_bound > 0) {
            hf_fail(&linear, HF_KEY_LIN_BOUND, "must be negative: it bounds a log decay from below");
        }
    }
    hf_reader_leave(&linear);
    if (model_has_mixer(model, MIXER_MLA)) {
        import_mla(import);
    } else {
        static const HfKey idle[] = {HF_KEY_HEAD_DIM, HF_KEY_KV_HEADS, HF_KEY_HEADS, HF_KEY_Q_RANK,   HF_KEY_KV_RANK,
                                     HF_KEY_NOPE_DIM, HF_KEY_ROPE_DIM, HF_KEY_V_DIM, HF_KEY_MLA_GATE, HF_KEY_ATTN_BIAS};
        for (size_t i = 0; i < G_N_ELEMENTS(idle); i++) {
            hf_skip(&import->text, idle[i]);
        }
    }
    model->attnres_block = hf_int(&import->text, HF_KEY_ATTNRES, 0);
    if (model_n_sources(model, model->n_layers) > ATTNRES_SOURCES_MAX) {
        hf_fail(&import->text, HF_KEY_ATTNRES,
                "%" G_GINT64_FORMAT " layers in blocks of %" G_GINT64_FORMAT " need a mix of more than %d sources",
                model->n_layers, model->attnres_block, ATTNRES_SOURCES_MAX);
    }
}

static void import_gdn(HfImport *import)
{
    Model *model = import->model;
    HfReader *text = &import->text;
    model->gated_attention = TRUE;
    int64_t interval = hf_int(text, HF_KEY_FULL_INTERVAL, 4);
    if (!hf_read_layer_types(import, MIXER_GDN)) {
        if (interval == 0) {
            hf_fail(text, HF_KEY_FULL_INTERVAL, "must be positive");
            interval = 1;
        }
        for (int64_t i = 0; i < model->n_layers; i++) {
            model->layers[i].mixer = (i + 1) % interval == 0 ? MIXER_GQA : MIXER_GDN;
        }
    }
    model->lin_heads = hf_need(text, HF_KEY_GDN_KEY_HEADS);
    model->lin_value_heads = hf_need(text, HF_KEY_GDN_VALUE_HEADS);
    model->lin_key_dim = hf_need(text, HF_KEY_GDN_KEY_DIM);
    model->lin_value_dim = hf_need(text, HF_KEY_GDN_VALUE_DIM);
    model->conv_kernel = hf_need(text, HF_KEY_GDN_CONV);
    if (model->lin_value_heads % model->lin_heads != 0) {
        hf_fail(text, HF_KEY_GDN_VALUE_HEADS, "is no multiple of the %" G_GINT64_FORMAT " key heads", model->lin_heads);
    }
    import_gqa(import);
}

static void import_mamba(HfImport *import)
{
    Model *model = import->model;
    HfReader *text = &import->text;
    model->norms_per_layer = 1;
    hf_read_pattern(import);
    model->mamba_heads = hf_need(text, HF_KEY_MAMBA_HEADS);
    model->mamba_head_dim = hf_need(text, HF_KEY_MAMBA_DIM);
    model->mamba_groups = hf_need(text, HF_KEY_MAMBA_GROUPS);
    model->mamba_state = hf_need(text, HF_KEY_MAMBA_STATE);
    model->mamba_conv = hf_need(text, HF_KEY_MAMBA_CONV);
    model->mamba_chunk = hf_int(text, HF_KEY_MAMBA_CHUNK, 0);
    hf_only(text, HF_KEY_MAMBA_BIAS, FALSE, "biases of Mamba projections");
    hf_only(text, HF_KEY_MAMBA_CONV_BIAS, TRUE, "Mamba convolution without bias");
    hf_only(text, HF_KEY_USE_BIAS, FALSE, "biases of Mamba projections");
    import_gqa(import);
    static const HfKey idle[] = {HF_KEY_WINDOW, HF_KEY_ROTARY_FRAC, HF_KEY_ROPE_THETA};
    for (size_t i = 0; i < G_N_ELEMENTS(idle); i++) { /* these models use no rotary embedding */
        hf_skip(text, idle[i]);
    }
}

static void import_windows(HfImport *import)
{
    Model *model = import->model;
    HfReader *text = &import->text;
    if (hf_read_layer_types(import, MIXER_NONE)) {
        if (import->family->windowed) {
            hf_skip(text, HF_KEY_WINDOW);
            hf_skip(text, HF_KEY_USE_WINDOW);
        }
        return;
    }
    int64_t window = import->family->windowed ? hf_int(text, HF_KEY_WINDOW, 0) : 0;
    gboolean asked = hf_bool(text, HF_KEY_USE_WINDOW, hf_find(text, HF_KEY_WINDOW) != NULL);
    for (int64_t i = 0; i < model->n_layers; i++) {
        model->layers[i].sliding_window = asked ? window : 0;
    }
}

static void import_gqa_layers(HfImport *import)
{
    import_gqa(import);
    import_windows(import);
    hf_read_attention_types(import);
}

static void import_mla_layers(HfImport *import)
{
    for (int64_t i = 0; i < import->model->n_layers; i++) {
        import->model->layers[i].mixer = MIXER_MLA;
    }
    import_mla(import);
}

static void (*const import_layout[])(HfImport *import) = {
    [HF_LAYOUT_GQA] = import_gqa_layers, [HF_LAYOUT_MLA] = import_mla_layers, [HF_LAYOUT_KDA] = import_kda,
    [HF_LAYOUT_GDN] = import_gdn,        [HF_LAYOUT_MAMBA] = import_mamba,
};

static void import_sizes(HfImport *import)
{
    Model *model = import->model;
    HfReader *text = &import->text;
    model->hidden = hf_need(text, HF_KEY_HIDDEN);
    model->vocab = hf_need(text, HF_KEY_VOCAB);
    model->tied_embeddings = hf_bool(text, HF_KEY_TIED, FALSE);
    model->norm_eps = hf_number(text, HF_KEY_EPS, import->family->eps);
    model->norm_zero_centered = import->family->zero_centered;
    model->n_mtp_layers = hf_int(text, HF_KEY_MTP, import->family->n_mtp);
    model->norms_per_layer = 2;
    if (import->family->layout == HF_LAYOUT_MAMBA) {
        model->n_mtp_layers = 0; /* its layers follow a pattern of their own, which is not read */
    }
    hf_skip(text, HF_KEY_DTYPE);
    hf_only(text, HF_KEY_MLP_BIAS, FALSE, "biases of MLPs");
}

/* What no layer uses is 0, whatever the file says. */
static void import_clear_unused(Model *model)
{
    if (!model_has_indexer(model)) {
        model->index_heads = model->index_dim = model->index_topk = 0;
        model->index_rope = FALSE;
    }
    if (!model_has_mixer(model, MIXER_KDA) && !model_has_mixer(model, MIXER_GDN)) {
        model->lin_heads = model->lin_value_heads = model->lin_key_dim = model->lin_value_dim = model->conv_kernel = 0;
        model->kda_full_gate = FALSE;
    }
    if (!model_has_mixer(model, MIXER_MAMBA2)) {
        model->mamba_heads = model->mamba_head_dim = model->mamba_groups = model->mamba_state = model->mamba_conv = 0;
    }
    if (!model_has_ffn(model, FFN_MOE)) {
        model->n_experts = model->top_k = model->expert_width = model->n_shared_experts = model->shared_width = 0;
        model->latent_width = model->router_groups = model->router_topk_groups = 0;
        model->router_bias_buffer = model->router_linear_bias = model->shared_gate = model->expert_bias = FALSE;
    }
}

static void import_text(HfImport *import)
{
    import_sizes(import);
    import_layer_count(import);
    import_activation(import);
    import_layout[import->family->layout](import);
    if (import->family->indexer != HF_INDEXER_NONE) {
        import_indexer(import);
    }
    if (import->family->layout != HF_LAYOUT_MAMBA) {
        import_rope(import);
    }
    hf_read_ffn(import);
    hf_reader_finish(&import->text);
    import_clear_unused(import->model);
    hf_check_sizes(import);
}

/* The family that an object names; a mistake sticks to the object. */
static const HfFamily *import_family(JsonObject *object, gboolean nested)
{
    const char *type = json_object_string(object, "model_type", NULL);
    const HfFamily *family = type == NULL ? NULL : hf_family(type);
    if (type == NULL) {
        json_object_fail(object, "model_type", "missing; it says how the other fields are meant");
    } else if (family == NULL || (nested && family->layout == HF_LAYOUT_WRAPPER)) {
        g_autoptr(GString) known = g_string_new(NULL);
        const char *names[G_N_ELEMENTS(families)];
        for (size_t i = 0; i < G_N_ELEMENTS(families); i++) {
            names[i] = families[i].model_type;
            g_string_append_printf(known, "%s%s", i == 0 ? "" : ", ", names[i]);
        }
        const char *near = error_nearest_name(type, names, G_N_ELEMENTS(families));
        json_object_fail(object, "model_type", "\"%s\" models are not known%s%s%s; known: %s", type,
                         near == NULL ? "" : " (nearest: ", near == NULL ? "" : near, near == NULL ? "" : ")",
                         known->str);
        family = NULL;
    }
    return family;
}

/* The language model inside an object. */
static void import_object(JsonObject *object, const HfFamily *family, Model *model)
{
    HfImport import = {.family = family, .model = model};
    const char *key;
    hf_reader_init(&import.text, object, family->model_type);
    hf_skip(&import.text, HF_KEY_MODEL_TYPE);
    import_text(&import);
    for (size_t i = 0; (key = json_object_key(object, i)) != NULL; i++) {
        json_object_ignore(object, key); /* judged by hf_reader_finish */
    }
    hf_reader_clear(&import.text);
}

/* A file that holds a language model and a vision tower as two objects. */
static void import_wrapper(JsonObject *root, const HfFamily *family, Model *model)
{
    HfReader reader;
    HfReader text;
    HfReader vision;
    hf_reader_init(&reader, root, family->model_type);
    hf_skip(&reader, HF_KEY_MODEL_TYPE);
    hf_skip(&reader, HF_KEY_DTYPE);
    hf_reader_enter(&text, &reader, HF_KEY_TEXT);
    if (text.object == NULL) {
        hf_fail(&reader, HF_KEY_TEXT, "missing; a %s model has its language model there", family->model_type);
    } else {
        const HfFamily *inner = import_family(text.object, TRUE);
        if (inner != NULL) {
            import_object(text.object, inner, model);
        }
        json_object_end(text.object);
    }
    hf_reader_clear(&text);
    if (hf_bool(&reader, HF_KEY_TIED, model->tied_embeddings) != model->tied_embeddings) {
        hf_fail(&reader, HF_KEY_TIED, "differs from text_config.tie_word_embeddings; both must say the same");
    }
    hf_reader_enter(&vision, &reader, HF_KEY_VISION);
    if (vision.object != NULL && json_object_ok(root)) {
        hf_read_vision(&vision, model);
    }
    hf_reader_leave(&vision);
    hf_reader_finish(&reader);
    const char *key;
    for (size_t i = 0; (key = json_object_key(root, i)) != NULL; i++) {
        json_object_ignore(root, key);
    }
    hf_reader_clear(&reader);
}

gboolean hf_read(JsonDoc *doc, Model *model, GError **error)
{
    JsonObject *root = json_doc_open(doc, error);
    if (root == NULL) {
        return FALSE;
    }
    const HfFamily *family = import_family(root, FALSE);
    if (family != NULL) {
        model->family = g_strdup(family->model_type);
        model->prefix = g_strdup(family->layout == HF_LAYOUT_WRAPPER ? "language_model.model." : "model.");
        if (family->layout == HF_LAYOUT_WRAPPER) {
            import_wrapper(root, family, model);
        } else {
            import_object(root, family, model);
        }
    }
    return json_object_close(root, TRUE, error);
}
