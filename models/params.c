/*
 * Closed formulas (reference: counts that model cards publish; each formula is the sum over the matrices of the
 * layer). Letters: h hidden, H heads, P their total width, V vocabulary, E experts, f expert width, l what an
 * expert reads, r adapter rank.
 */
#include "models/params.h"

#include <string.h>

static const char *const part_names[N_PARAM_PARTS] = {
    [PARAM_PART_EMBEDDING] = "embedding",
    [PARAM_PART_GQA] = "gqa",
    [PARAM_PART_MLA] = "mla",
    [PARAM_PART_INDEXER] = "dsa_indexer",
    [PARAM_PART_KDA] = "kda",
    [PARAM_PART_GDN] = "gdn",
    [PARAM_PART_MAMBA2] = "mamba2",
    [PARAM_PART_NORMS] = "norms",
    [PARAM_PART_ATTNRES] = "attnres",
    [PARAM_PART_DENSE_MLP] = "dense_mlp",
    [PARAM_PART_ROUTER] = "router",
    [PARAM_PART_SHARED_EXPERTS] = "shared_experts",
    [PARAM_PART_LATENT] = "latent_projections",
    [PARAM_PART_ROUTED_EXPERTS] = "routed_experts",
    [PARAM_PART_HEAD] = "head",
    [PARAM_PART_VISION] = "vision_tower",
    [PARAM_PART_PROJECTOR] = "vision_projector",
};

/* Part that a mixer's parameters belong to. */
static const ParamPart mixer_parts[N_MIXER_KINDS] = {
    [MIXER_GQA] = PARAM_PART_GQA, [MIXER_MLA] = PARAM_PART_MLA,       [MIXER_KDA] = PARAM_PART_KDA,
    [MIXER_GDN] = PARAM_PART_GDN, [MIXER_MAMBA2] = PARAM_PART_MAMBA2, [MIXER_NONE] = PARAM_PART_NORMS,
};

const char *param_part_name(ParamPart part)
{
    g_assert(part < N_PARAM_PARTS);
    return part_names[part];
}

static int64_t gqa_params(const Model *m)
{
    int64_t q = m->n_heads * m->head_dim;
    int64_t kv = m->n_kv_heads * m->head_dim;
    int64_t n = m->hidden * (2 * q + 2 * kv);
    n += m->gated_attention ? m->hidden * q : 0;
    n += m->qkv_bias ? q + 2 * kv : 0;
    n += m->o_bias ? m->hidden : 0;
    n += m->attention_sinks ? m->n_heads : 0;
    n += m->qk_norm == QK_NORM_HEAD ? 2 * m->head_dim : m->qk_norm == QK_NORM_FULL ? q + kv : 0;
    return n;
}

static int64_t mla_params(const Model *m)
{
    int64_t q = m->n_heads * (m->nope_dim + m->rope_dim);
    int64_t o = m->n_heads * m->v_dim;
    int64_t n = m->q_lora_rank > 0 ? m->hidden * m->q_lora_rank + m->q_lora_rank + m->q_lora_rank * q : m->hidden * q;
    n += m->hidden * (m->kv_lora_rank + m->rope_dim) + m->kv_lora_rank;
    n += m->kv_lora_rank * m->n_heads * (m->nope_dim + m->v_dim);
    return n + (m->mla_gate ? 2 : 1) * o * m->hidden;
}

/* The indexer reads the query latent, or the layer's input where there is none. */
static int64_t indexer_params(const Model *m)
{
    int64_t query = m->q_lora_rank > 0 ? m->q_lora_rank : m->hidden;
    return query * m->index_heads * m->index_dim + m->hidden * m->index_dim + 2 * m->index_dim +
           m->hidden * m->index_heads;
}

static int64_t kda_params(const Model *m)
{
    int64_t p = m->lin_heads * m->lin_key_dim;
    int64_t low_rank = m->hidden * m->lin_key_dim + m->lin_key_dim * p; /* f, and g unless it is full */
    int64_t n = 4 * m->hidden * p + 3 * p * m->conv_kernel + low_rank;
    n += m->kda_full_gate ? m->hidden * p : low_rank;
    return n + m->hidden * m->lin_heads + m->lin_heads + p + m->lin_value_dim;
}

static int64_t gdn_params(const Model *m)
{
    int64_t key = m->lin_heads * m->lin_key_dim;
    int64_t value = m->lin_value_heads * m->lin_value_dim;
    int64_t n = m->hidden * (2 * key + 2 * value) + value * m->hidden; /* q, k, v, z and out */
    n += 2 * m->hidden * m->lin_value_heads + 2 * m->lin_value_heads;  /* a, b and A_log, dt_bias */
    return n + (2 * key + value) * m->conv_kernel + m->lin_value_dim;
}

static int64_t mamba_params(const Model *m)
{
    int64_t inner = m->mamba_heads * m->mamba_head_dim;
    int64_t bc = 2 * m->mamba_groups * m->mamba_state;
    int64_t channels = inner + bc;
    int64_t n = m->hidden * (2 * inner + bc + m->mamba_heads) + channels * m->mamba_conv + channels;
    return n + 3 * m->mamba_heads + inner + inner * m->hidden;
}

static int64_t mixer_params(const Model *m, MixerKind mixer)
{
    static int64_t (*const formulas[N_MIXER_KINDS])(const Model *model) = {
        [MIXER_GQA] = gqa_params, [MIXER_MLA] = mla_params,      [MIXER_KDA] = kda_params,
        [MIXER_GDN] = gdn_params, [MIXER_MAMBA2] = mamba_params,
    };
    return formulas[mixer] == NULL ? 0 : formulas[mixer](m);
}

static int64_t expert_params(const Model *m)
{
    int64_t l = model_expert_input(m);
    int64_t biases = m->expert_bias ? (m->ungated_mlp ? 1 : 2) * m->expert_width + l : 0;
    return (m->ungated_mlp ? 2 : 3) * l * m->expert_width + biases;
}

static void moe_parts(const Model *m, int64_t *parts)
{
    int64_t router = m->n_experts * m->hidden;
    router += (m->router_bias_buffer ? m->n_experts : 0) + (m->router_linear_bias ? m->n_experts : 0);
    parts[PARAM_PART_ROUTER] += router;
    parts[PARAM_PART_ROUTED_EXPERTS] += m->n_experts * expert_params(m);
    if (m->shared_width > 0) {
        parts[PARAM_PART_SHARED_EXPERTS] +=
            (m->ungated_mlp ? 2 : 3) * m->hidden * m->shared_width + (m->shared_gate ? m->hidden : 0);
    }
    if (m->latent_width > 0) {
        parts[PARAM_PART_LATENT] += 2 * m->hidden * m->latent_width + (m->latent_norm ? m->latent_width : 0);
    }
}

void param_layer_parts(const Model *model, int64_t layer, int64_t *ret_parts)
{
    const ModelLayer *l = &model->layers[layer];
    ret_parts[mixer_parts[l->mixer]] += mixer_params(model, l->mixer);
    if (l->has_indexer) {
        ret_parts[PARAM_PART_INDEXER] += indexer_params(model);
    }
    if (l->ffn == FFN_DENSE) {
        ret_parts[PARAM_PART_DENSE_MLP] += (model->ungated_mlp ? 2 : 3) * model->hidden * l->ffn_width;
    } else if (l->ffn == FFN_MOE) {
        moe_parts(model, ret_parts);
    }
    ret_parts[PARAM_PART_NORMS] += model->norms_per_layer * model->hidden;
    ret_parts[PARAM_PART_ATTNRES] += model->attnres_block > 0 ? 4 * model->hidden : 0;
}

static void vision_parts(const Model *m, int64_t *parts)
{
    if (m->vision_layers == 0) {
        return;
    }
    int64_t c = m->vision_hidden;
    int64_t qkv = m->vision_heads * m->vision_head_dim;
    int64_t merged = c * m->vision_merge * m->vision_merge;
    int64_t block = 4 * c * qkv + 2 * c * m->vision_width + 2 * c;
    int64_t patch = 3 * m->vision_patch * m->vision_patch * c; /* three colours */
    parts[PARAM_PART_VISION] = m->vision_layers * block + patch + m->vision_pos_size * m->vision_pos_size * c + c;
    parts[PARAM_PART_PROJECTOR] = merged * merged + merged * m->hidden + m->hidden;
}

/* One more decoder layer like the last, a projection of two hidden states to one, and three norms. */
static int64_t mtp_params(const Model *m)
{
    int64_t parts[N_PARAM_PARTS] = {0};
    int64_t n = 2 * m->hidden * m->hidden + 3 * m->hidden;
    param_layer_parts(m, m->n_layers - 1, parts);
    for (int i = 0; i < N_PARAM_PARTS; i++) {
        n += parts[i];
    }
    return n * m->n_mtp_layers;
}

void param_counts_finish(const Model *model, ParamCounts *counts)
{
    int64_t text = 0;
    int64_t idle = 0; /* routed experts that a token does not use */
    counts->vision = counts->parts[PARAM_PART_VISION] + counts->parts[PARAM_PART_PROJECTOR];
    counts->buffers = 0;
    counts->total = 0;
    for (int i = 0; i < N_PARAM_PARTS; i++) {
        counts->total += counts->parts[i];
    }
    for (int64_t i = 0; i < model->n_layers; i++) {
        counts->buffers += model->layers[i].ffn == FFN_MOE && model->router_bias_buffer ? model->n_experts : 0;
    }
    if (model->n_experts > 0) {
        idle = counts->parts[PARAM_PART_ROUTED_EXPERTS] / model->n_experts * (model->n_experts - model->top_k);
    }
    text = counts->total - counts->vision;
    counts->active = text - idle;
    counts->active_without_embedding =
        counts->active - (model->tied_embeddings ? 0 : counts->parts[PARAM_PART_EMBEDDING]);
    counts->mtp = model->n_mtp_layers > 0 ? mtp_params(model) : 0;
}

void param_counts(const Model *model, ParamCounts *ret_counts)
{
    *ret_counts = (ParamCounts){0};
    int64_t *parts = ret_counts->parts;
    parts[PARAM_PART_EMBEDDING] = model->vocab * model->hidden;
    parts[PARAM_PART_HEAD] = model->tied_embeddings ? 0 : model->vocab * model->hidden;
    for (int64_t i = 0; i < model->n_layers; i++) {
        param_layer_parts(model, i, parts);
    }
    parts[PARAM_PART_NORMS] += model->hidden;
    parts[PARAM_PART_ATTNRES] += model->attnres_block > 0 ? 2 * model->hidden : 0;
    vision_parts(model, parts);
    param_counts_finish(model, ret_counts);
}

ParamPart param_part_of(const Model *model, int64_t layer, const char *name)
{
    static const struct {
        const char *start;
        ParamPart part;
    } starts[] = {
        {"self_attn.indexer.", PARAM_PART_INDEXER},
        {"block_sparse_moe.experts.", PARAM_PART_ROUTED_EXPERTS},
        {"block_sparse_moe.gate.", PARAM_PART_ROUTER},
        {"block_sparse_moe.shared_expert", PARAM_PART_SHARED_EXPERTS},
        {"block_sparse_moe.routed_expert_", PARAM_PART_LATENT},
        {"mlp.", PARAM_PART_DENSE_MLP},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(starts); i++) {
        if (g_str_has_prefix(name, starts[i].start)) {
            return starts[i].part;
        }
    }
    if (g_str_has_prefix(name, "self_attn.")) {
        return mixer_parts[model->layers[layer].mixer];
    }
    return strstr(name, "_res_") != NULL ? PARAM_PART_ATTNRES : PARAM_PART_NORMS;
}

int64_t param_counts_per_ep_rank(const ParamCounts *counts, int64_t ep_size, gboolean with_buffers)
{
    int64_t experts = counts->parts[PARAM_PART_ROUTED_EXPERTS];
    int64_t rest = counts->total - counts->vision - experts - (with_buffers ? 0 : counts->buffers);
    g_assert(experts % ep_size == 0);
    return rest + experts / ep_size;
}

/* Sums of inputs and outputs of the matrices that get an adapter: each adds rank x (in + out). */
static int64_t mixer_lora_sum(const Model *m, MixerKind mixer)
{
    int64_t h = m->hidden;
    if (mixer == MIXER_GQA) {
        int64_t q = m->n_heads * m->head_dim;
        int64_t kv = m->n_kv_heads * m->head_dim;
        return (h + q * (m->gated_attention ? 2 : 1)) + 2 * (h + kv) + (q + h);
    }
    if (mixer == MIXER_MLA) {
        int64_t q = m->n_heads * (m->nope_dim + m->rope_dim);
        int64_t o = m->n_heads * m->v_dim;
        int64_t n = m->q_lora_rank > 0 ? h + 2 * m->q_lora_rank + q : h + q;
        n += h + m->kv_lora_rank + m->rope_dim + m->kv_lora_rank + m->n_heads * (m->nope_dim + m->v_dim);
        return n + (m->mla_gate ? 2 : 1) * (o + h);
    }
    if (mixer == MIXER_KDA) {
        int64_t p = m->lin_heads * m->lin_key_dim;
        int64_t low_rank = h + 2 * m->lin_key_dim + p;
        return 4 * (h + p) + low_rank + (m->kda_full_gate ? h + p : low_rank);
    }
    if (mixer == MIXER_GDN) {
        int64_t key = m->lin_heads * m->lin_key_dim;
        int64_t value = m->lin_value_heads * m->lin_value_dim;
        return 2 * (h + key) + 3 * (h + value);
    }
    if (mixer == MIXER_MAMBA2) {
        int64_t inner = m->mamba_heads * m->mamba_head_dim;
        return h + 2 * inner + 2 * m->mamba_groups * m->mamba_state + m->mamba_heads + inner + h;
    }
    return 0;
}

static int64_t moe_lora(const Model *m, const ParamLora *lora)
{
    int64_t l = model_expert_input(m);
    int64_t f = m->expert_width;
    int64_t up = m->ungated_mlp ? 1 : 2; /* matrices from l to f; one goes back */
    int64_t n = 0;
    if (lora->shared) {
        n += m->shared_width > 0 ? (up + 1) * (m->hidden + m->shared_width) : 0;
        n += m->latent_width > 0 ? 2 * (m->hidden + m->latent_width) : 0;
    }
    if (lora->experts && lora->shared_a) {
        n += up * (l + m->n_experts * f) + f + m->n_experts * l;
    } else if (lora->experts) {
        n += (up + 1) * m->n_experts * (l + f);
    }
    return n * lora->rank;
}

int64_t param_count_lora(const Model *model, const ParamLora *lora)
{
    int64_t n = 0;
    for (int64_t i = 0; i < model->n_layers; i++) {
        n += lora->attention ? lora->rank * mixer_lora_sum(model, model->layers[i].mixer) : 0;
        n += model->layers[i].ffn == FFN_MOE ? moe_lora(model, lora) : 0;
    }
    return n;
}
