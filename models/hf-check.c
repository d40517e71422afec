/*
 * Bounds of sizes. A file may hold any numbers; what follows from them (parameters, elements of a tensor for as many
 * tokens as a plan may ask for) is computed in 64 bits without further checks. Widths up to 2^22, experts up to 2^16
 * and 2^58 parameters leave room for 2^40 tokens.
 */
#include "models/hf.h"

enum { EXPERTS_MAX = 1 << 16 };
static const double width_max = 4194304.0;             /* 2^22 */
static const double params_max = 288230376151711744.0; /* 2^58 */

/* Upper bound of the parameters, in floating point. */
static double params_bound(const Model *m)
{
    double h = (double)m->hidden;
    double widest = (double)m->n_heads * (double)(m->head_dim + m->nope_dim + m->rope_dim + m->v_dim);
    double linear =
        (double)m->lin_heads * (double)m->lin_key_dim + (double)m->lin_value_heads * (double)m->lin_value_dim;
    double mamba =
        (double)m->mamba_heads * (double)m->mamba_head_dim + (double)m->mamba_groups * (double)m->mamba_state;
    double latents = (double)(m->q_lora_rank + m->kv_lora_rank);
    double index = (double)m->index_heads * (double)m->index_dim;
    double mixer = 16 * (h + latents) * (1 + widest + linear + mamba + index + latents);
    double dense = 0;
    for (int64_t i = 0; i < m->n_layers; i++) {
        dense = MAX(dense, (double)m->layers[i].ffn_width);
    }
    double expert = 4 * (double)(h + (double)m->latent_width) * (1 + (double)m->expert_width);
    double moe = (double)m->n_experts * (expert + h) + 4 * h * (double)(m->shared_width + m->latent_width);
    double layer = mixer + 4 * h * dense + moe + 16 * h;
    return ((double)m->n_layers + (double)m->n_mtp_layers) * layer + 2 * h * (double)m->vocab;
}

void hf_check_sizes(HfImport *import)
{
    const Model *m = import->model;
    const struct {
        HfKey key;
        double width;
    } widths[] = {
        {HF_KEY_HIDDEN, (double)m->hidden},
        {HF_KEY_HEADS, (double)m->n_heads * (double)MAX(2 * m->head_dim, m->nope_dim + m->rope_dim + m->v_dim)},
        {HF_KEY_Q_RANK, (double)m->q_lora_rank},
        {HF_KEY_KV_RANK, (double)m->kv_lora_rank},
        {HF_KEY_LINEAR_ATTN, (double)m->lin_heads * (double)m->lin_key_dim},
        {HF_KEY_GDN_VALUE_HEADS, (double)m->lin_value_heads * (double)m->lin_value_dim},
        {HF_KEY_MAMBA_HEADS, (double)m->mamba_heads * (double)(2 * m->mamba_head_dim + 1)},
        {HF_KEY_MAMBA_GROUPS, 2 * (double)m->mamba_groups * (double)m->mamba_state},
        {HF_KEY_INDEX_HEADS, (double)m->index_heads * (double)m->index_dim},
        {HF_KEY_INDEX_TOPK, (double)m->index_topk},
        {import->family->expert_width, (double)m->expert_width},
        {HF_KEY_SHARED, (double)m->shared_width},
        {HF_KEY_LATENT, (double)m->latent_width},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(widths); i++) {
        if (widths[i].width > width_max) {
            hf_fail(&import->text, widths[i].key, "makes a tensor %.0f numbers wide; the most is %.0f", widths[i].width,
                    width_max);
        }
    }
    if (m->index_rope && m->rotary_dim > m->index_dim) {
        hf_fail(&import->text, HF_KEY_INDEX_DIM,
                "%" G_GINT64_FORMAT " numbers do not hold the %" G_GINT64_FORMAT " that are rotated", m->index_dim,
                m->rotary_dim);
    }
    if (m->n_experts > EXPERTS_MAX) {
        hf_fail(&import->text, HF_KEY_EXPERTS, "more than %d experts", EXPERTS_MAX);
    }
    if (params_bound(m) > params_max) {
        hf_fail(&import->text, HF_KEY_LAYERS, "these sizes make more than 2^58 parameters");
    }
}
