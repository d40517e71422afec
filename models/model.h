/*
 * Model: an architecture as plain data, whatever file it came from.
 *
 * Invariants after model_load: every count is positive where its feature is present and 0 where it is
 * absent; layers[] has n_layers entries; n_experts > 0 if and only if some layer is MoE.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdint.h>

typedef enum MixerKind {
    MIXER_GQA,
    MIXER_MLA,
    MIXER_KDA,
    MIXER_GDN,
    MIXER_MAMBA2,
    MIXER_NONE,
    N_MIXER_KINDS
} MixerKind;
typedef enum FfnKind { FFN_DENSE, FFN_MOE, FFN_NONE, N_FFN_KINDS } FfnKind;
typedef enum ActivationKind {
    ACTIVATION_SWIGLU,
    ACTIVATION_SITU,
    ACTIVATION_GPTOSS,
    ACTIVATION_RELU2,
    ACTIVATION_GELU
} ActivationKind;
typedef enum RouterScore { ROUTER_SOFTMAX, ROUTER_SIGMOID, ROUTER_TOPK_SOFTMAX } RouterScore;
typedef enum RopeLayout { ROPE_NONE, ROPE_HALF, ROPE_INTERLEAVED } RopeLayout;
typedef enum QkNorm {
    QK_NORM_NONE,
    QK_NORM_HEAD,
    QK_NORM_FULL
} QkNorm; /* per head of size head_dim, or over all heads */

/* One decoder layer. */
typedef struct ModelLayer {
    MixerKind mixer;
    FfnKind ffn;
    gboolean has_indexer;   /* DSA on an MLA layer */
    int64_t sliding_window; /* 0 = none */
    int64_t ffn_width;      /* dense layers */
} ModelLayer;

typedef struct Model {
    gint extra_refs; /* beside the first; see model_ref() */
    char *name;   /* preset name or file stem */
    char *family; /* model_type of the file */
    char *prefix; /* of the decoder's checkpoint names: "model." or "language_model.model." */
    int64_t n_layers;
    ModelLayer *layers;
    int64_t hidden, vocab;
    gboolean tied_embeddings;
    double norm_eps;
    gboolean norm_zero_centered;
    int norms_per_layer; /* 2; 1 for Nemotron's single-sublayer blocks */

    /* attention (GQA) */
    int64_t n_heads, n_kv_heads, head_dim; /* n_heads also of MLA */
    gboolean qkv_bias, o_bias, attention_sinks, gated_attention;
    QkNorm qk_norm;
    RopeLayout rope; /* of GQA and MLA layers */
    int64_t rotary_dim;
    double rope_base;

    /* MLA */
    int64_t q_lora_rank, kv_lora_rank, nope_dim, rope_dim, v_dim; /* q_lora_rank 0 = full q projection */
    gboolean mla_gate;

    /* DSA */
    int64_t index_heads, index_dim, index_topk;
    gboolean index_rope;

    /* linear attention: KDA and GDN */
    int64_t lin_heads, lin_value_heads, lin_key_dim, lin_value_dim, conv_kernel; /* conv_kernel 0 = no convolution */
    gboolean kda_full_gate;                                                      /* output gate by one full matrix */
    double kda_gate_bound; /* lower bound (-5), or 0 = softplus form */

    /* Mamba-2 */
    int64_t mamba_heads, mamba_head_dim, mamba_groups, mamba_state, mamba_conv,
        mamba_chunk; /* mamba_chunk 0 = the kernel's own */

    /* MoE */
    int64_t n_experts, top_k, expert_width, n_shared_experts,
        shared_width;     /* shared_width: of the merged MLP, 0 = none */
    gboolean shared_gate; /* Qwen: scaled by sigmoid of one vector */
    int64_t latent_width; /* expert input width if it differs from hidden, else 0 */
    gboolean latent_norm;
    int64_t router_groups, router_topk_groups;
    gboolean router_group_max; /* a group counts by its largest score (DeepSeek-V2), not by its two largest */
    RouterScore router_score;
    gboolean router_renorm, router_bias_buffer, router_linear_bias;
    double router_scaling;
    gboolean expert_bias; /* gpt-oss */
    ActivationKind activation;
    gboolean ungated_mlp;               /* Nemotron: two matrices */
    double situ_beta, situ_linear_beta; /* situ_linear_beta 0 = linear branch unbounded */

    /* attention residuals */
    int64_t attnres_block; /* 0 = none */

    /* vision tower and projector: 0 layers = none */
    int64_t vision_layers, vision_hidden, vision_width, vision_heads, vision_head_dim;
    int64_t vision_patch, vision_pos_size, vision_merge; /* patch edge, position table edge, merge edge */

    int64_t n_mtp_layers; /* reported, not counted */
} Model;

/*
 * Loads a model: a preset's name, or the path of a Hugging Face config.json (nested text_config too).
 * overrides (may be NULL) replace fields of the text configuration; layer lists are cut when the layer
 * count shrinks, and growing them is refused. Errors name file, field and value, and the nearest known name.
 */
Model *model_load(const char *name_or_path, json_t *overrides, GError **error);

/* The same from a value in memory (native model object of a plan, a test); name is for messages. */
Model *model_from_json(json_t *config, const char *name, json_t *overrides, GError **error);
/* One more owner: the model lives until model_free() has been called once more, from whichever thread. */
Model *model_ref(Model *model);
void model_free(Model *model);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Model, model_free)

/* Names of the shipped presets, sorted, NULL-terminated; free with g_strfreev. */
char **model_preset_names(void);

/* Whether some layer has that mixer, or that feed-forward part, or an indexer. */
gboolean model_has_mixer(const Model *model, MixerKind mixer);
gboolean model_has_ffn(const Model *model, FfnKind ffn);
gboolean model_has_indexer(const Model *model);

/* Width of what an expert reads: the latent one or the model's. */
int64_t model_expert_input(const Model *model);

/* Words for messages and reports: "kda", "moe", ... Never NULL. */
const char *model_mixer_name(MixerKind mixer);
const char *model_ffn_name(FfnKind ffn);

/*
 * Attention residuals: boundary tensors that layer i reads, the rows of the bank and then the prefix; 1 for
 * models without them. i = n_layers asks for the head.
 */
int64_t model_n_sources(const Model *model, int64_t layer);

/* Whether layer i moves its incoming prefix into the bank and starts a new one. */
gboolean model_starts_block(const Model *model, int64_t layer);
