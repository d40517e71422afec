/*
 * Import of a Hugging Face config.json: one row of hf.def per model_type says how its layers are laid out, where
 * its experts stand and what is meant when the file says nothing.
 */
#pragma once

#include <glib.h>

#include "models/hf-keys.h"
#include "models/model.h"

/* How the mixers of the layers are found. */
typedef enum HfLayout {
    HF_LAYOUT_GQA,     /* all GQA; layer_types may alternate sliding windows */
    HF_LAYOUT_MLA,     /* all MLA */
    HF_LAYOUT_KDA,     /* linear_attn_config lists KDA and MLA layers */
    HF_LAYOUT_GDN,     /* full_attention_interval or layer_types: GDN and gated GQA */
    HF_LAYOUT_MAMBA,   /* a pattern of single sublayers */
    HF_LAYOUT_WRAPPER, /* text_config holds the language model, vision_config a MoonViT tower */
} HfLayout;

/* Which layers are MoE. */
typedef enum HfMoe {
    HF_MOE_NONE,
    HF_MOE_EVERY,
    HF_MOE_AFTER_DENSE, /* first_k_dense_replace, then every moe_layer_freq-th */
    HF_MOE_STEP,        /* decoder_sparse_step, mlp_only_layers */
    HF_MOE_PATTERN,     /* the layer pattern says it */
} HfMoe;

typedef enum HfIndexer { HF_INDEXER_NONE, HF_INDEXER_ALWAYS, HF_INDEXER_IF_GIVEN } HfIndexer;

typedef struct HfFamily {
    const char *model_type;
    HfLayout layout;
    HfMoe moe;
    HfKey expert_width;       /* field with the width of an expert */
    RouterScore score;        /* when the file does not say, or cannot */
    gboolean renorm;          /* when the file does not say */
    gboolean grouped;         /* router groups, scaling and shared experts in DeepSeek's fields */
    gboolean qkv_bias_always; /* q, k, v have biases whatever the file says */
    gboolean o_bias;          /* attention_bias gives the output projection one too */
    gboolean gpt_oss;         /* sinks, biases of experts and router, clamped SwiGLU */
    gboolean windowed;        /* sliding_window means something */
    QkNorm qk_norm;           /* unless use_qk_norm is false */
    gboolean qk_norm_asked;   /* per-head norms only if use_qk_norm is true */
    RopeLayout rope;
    gboolean zero_centered;
    HfIndexer indexer;
    double eps;    /* when the file does not say */
    int64_t n_mtp; /* likewise */
} HfFamily;

/* What is being read: the fields of the language model, its family and the model to fill. */
typedef struct HfImport {
    HfReader text;
    const HfFamily *family;
    Model *model;
} HfImport;

/* Parts of the import with files of their own: dense and MoE layers (hf-ffn.c), a MoonViT tower (hf-vision.c). */
void hf_read_ffn(HfImport *import);

/*
 * Lists of layers (hf-lists.c). A list of words, or NULL; layer_types, TRUE when the file has it (linear: the mixer
 * that "linear_attention" stands for, or MIXER_NONE); mlp_layer_types likewise; attn_type_list; Nemotron's patterns.
 */
json_t *hf_words(HfImport *import, HfKey key);
gboolean hf_read_layer_types(HfImport *import, MixerKind linear);
gboolean hf_read_mlp_types(HfImport *import);
void hf_read_attention_types(HfImport *import);
void hf_read_pattern(HfImport *import);
void hf_read_vision(HfReader *vision, Model *model);

/* Refuses sizes whose products, with any legal number of tokens, could leave 64 bits (hf-check.c). */
void hf_check_sizes(HfImport *import);

/* The family of a model_type, or NULL. */
const HfFamily *hf_family(const char *model_type);

/*
 * Reads a document (root = config) into an empty model; its layers are allocated. Errors name file, field and
 * what would be right.
 */
gboolean hf_read(JsonDoc *doc, Model *model, GError **error);

/*
 * A copy of the configuration with fields of its text part replaced: objects merge, an alias replaces the
 * name that the file uses, layer lists are cut when the layer count shrinks. Growing them is refused.
 */
json_t *hf_override(json_t *config, json_t *overrides, const char *name, GError **error);
