/*
 * Multi-head latent attention, with or without query latent, rotary part and output gate; dense, or sparse behind an
 * indexer.
 *
 * Sparse attention runs in absorbed form, which gathers one latent per selected key. Where the up-projection of keys
 * and values has an adapter, that form has no place for it, and keys and values are assembled.
 */
#include "models/block.h"

#include <math.h>

#include "models/ops/attention.h"
#include "models/ops/dsa-indexer.h"
#include "models/ops/dsa-kl.h"
#include "models/ops/mla-pack.h"
#include "models/ops/rope.h"
#include "models/ops/sigmoid-gate.h"
#include "models/ops/sparse-attention.h"
#include "models/ops/split.h"

/* Both latent norms keep the default of their class, whatever the file's rms_norm_eps is. */
static const double latent_eps = 1e-6;

/* What attention reads. */
typedef struct MlaTensors {
    int cq;     /* normed query latent; the layer's input where there is none */
    int q;      /* [TOKENS, H (nope + rope)] */
    int c;      /* normed latent of keys and values */
    int k_rope; /* key part that all heads share */
} MlaTensors;

static int mla_rope(Graph *graph, const Model *model, const char *name, int x, int64_t heads, int64_t offset)
{
    if (model->rope == ROPE_NONE) {
        return x;
    }
    RopeAttr attr = {.heads = heads,
                     .head_dim = offset + model->rope_dim,
                     .offset = offset,
                     .rotary_dim = model->rotary_dim,
                     .base = model->rope_base,
                     .layout = model->rope};
    return rope_add(graph, name, x, -1, &attr);
}

static MlaTensors mla_project(Graph *graph, const Model *model, const BlockOptions *options, int x)
{
    gboolean adapted = options->lora_attention;
    int64_t q_width = model->n_heads * (model->nope_dim + model->rope_dim);
    MlaTensors t = {.cq = x};
    int parts[2];
    if (model->q_lora_rank > 0) {
        int qa = block_linear(graph, options, "self_attn.q_a_proj", x, model->q_lora_rank, FALSE, adapted);
        t.cq = block_norm(graph, "self_attn.q_a_layernorm", qa, model->q_lora_rank, latent_eps, FALSE);
        t.q = block_linear(graph, options, "self_attn.q_b_proj", t.cq, q_width, FALSE, adapted);
    } else {
        t.q = block_linear(graph, options, "self_attn.q_proj", x, q_width, FALSE, adapted);
    }
    int64_t kv_width = model->kv_lora_rank + model->rope_dim;
    int kv = block_linear(graph, options, "self_attn.kv_a_proj_with_mqa", x, kv_width, FALSE, adapted);
    SplitAttr split = {.groups = 1, .n_parts = 2, .widths = {model->kv_lora_rank, model->rope_dim}};
    split_add(graph, "self_attn.kv_split", kv, &split, parts);
    t.c = block_norm(graph, "self_attn.kv_a_layernorm", parts[0], model->kv_lora_rank, latent_eps, FALSE);
    t.q = mla_rope(graph, model, "self_attn.q_rope", t.q, model->n_heads, model->nope_dim);
    t.k_rope = mla_rope(graph, model, "self_attn.k_rope", parts[1], 1, 0);
    return t;
}

/* Keys and values of every head. */
static MlaPackTensors mla_unpack(Graph *graph, const Model *model, const BlockOptions *options, const MlaTensors *t)
{
    MlaPackAttr attr = {
        .heads = model->n_heads, .nope_dim = model->nope_dim, .rope_dim = model->rope_dim, .v_dim = model->v_dim};
    int64_t width = model->n_heads * (model->nope_dim + model->v_dim);
    int kv = block_linear(graph, options, "self_attn.kv_b_proj", t->c, width, FALSE, options->lora_attention);
    return mla_pack_add(graph, "self_attn.kv_pack", kv, t->k_rope, &attr);
}

static int mla_dense(Graph *graph, const Model *model, const BlockOptions *options, const MlaTensors *t)
{
    MlaPackTensors kv = mla_unpack(graph, model, options, t);
    AttentionAttr attr = {.heads = model->n_heads,
                          .kv_heads = model->n_heads,
                          .head_dim = model->nope_dim + model->rope_dim,
                          .v_dim = model->v_dim,
                          .causal = TRUE};
    return attention_add(graph, "self_attn.attention", t->q, kv.k, kv.v, &attr).o;
}

/* An indexer that nothing trains is a fixed function. */
static void mla_freeze(Graph *graph, guint first_param)
{
    for (guint i = first_param; i < graph->params->len; i++) {
        graph_param(graph, (int)i)->trainable = FALSE;
    }
}

static void mla_index_loss(Graph *graph, const Model *model, const BlockOptions *options,
                           const DsaIndexerTensors *index, const DsaKlTarget *target)
{
    gboolean absorbed = target->k_tail >= 0;
    DsaKlAttr attr = {.index = {.heads = model->index_heads, .dim = model->index_dim, .top_k = model->index_topk},
                      .coeff = options->index_loss,
                      .heads = model->n_heads,
                      .kv_heads = absorbed ? 1 : model->n_heads,
                      .head_dim = absorbed ? model->kv_lora_rank + model->rope_dim : model->nope_dim + model->rope_dim,
                      .tail_dim = absorbed ? model->rope_dim : 0,
                      .scale = 1.0 / sqrt((double)(model->nope_dim + model->rope_dim))};
    attr.index.scale = 1.0 / sqrt((double)(model->index_heads * model->index_dim));
    graph_add_output(graph, dsa_kl_add(graph, "self_attn.indexer.kl", index, FALSE, target, &attr));
}

static int mla_sparse(Graph *graph, const Model *model, const BlockOptions *options, const MlaTensors *t, int x)
{
    gboolean learns = options->index_loss > 0 && !options->lora;
    gboolean plain = options->lora && options->lora_attention;
    guint first_param = graph->params->len;
    DsaIndexerLayer layer = {
        .select = {.heads = model->index_heads, .dim = model->index_dim, .top_k = model->index_topk},
        .norm_eps = model->norm_eps,
        .rotary_dim = model->index_rope ? model->rotary_dim : 0,
        .rope_base = model->rope_base};
    layer.select.scale = 1.0 / sqrt((double)(model->index_heads * model->index_dim));
    DsaIndexerTensors index = dsa_indexer_layer_add(graph, "self_attn.indexer", x, t->cq, -1, &layer);
    if (!learns) {
        mla_freeze(graph, first_param);
    }
    SparseAttentionAttr attr = {.heads = model->n_heads,
                                .kv_heads = model->n_heads,
                                .head_dim = model->nope_dim + model->rope_dim,
                                .v_dim = model->v_dim};
    DsaKlTarget target = {.q = t->q, .k_tail = -1};
    SparseAttentionTensors sparse;
    if (plain) {
        MlaPackTensors kv = mla_unpack(graph, model, options, t);
        sparse = sparse_attention_add(graph, "self_attn.attention", t->q, kv.k, kv.v, index.sel, &attr);
        target.k = kv.k;
    } else {
        attr.latent = model->kv_lora_rank;
        attr.rope_dim = model->rope_dim;
        const int inputs[4] = {t->q, t->c, t->k_rope, index.sel};
        sparse = sparse_mla_add(graph, "self_attn.attention", "self_attn.kv_b_proj", inputs, &attr);
        target = (DsaKlTarget){.q = sparse.q_abs, .k = t->c, .k_tail = t->k_rope};
    }
    target.lse = sparse.lse;
    if (learns) {
        mla_index_loss(graph, model, options, &index, &target);
    }
    return sparse.o;
}

static int mla_build(Graph *graph, const Model *model, const ModelLayer *layer, const BlockOptions *options, int x)
{
    gboolean adapted = options->lora_attention;
    MlaTensors t = mla_project(graph, model, options, x);
    int o = layer->has_indexer ? mla_sparse(graph, model, options, &t, x) : mla_dense(graph, model, options, &t);
    graph_set_heads(graph, "self_attn.q_proj.weight", model->n_heads);
    graph_set_heads(graph, "self_attn.q_b_proj.weight", model->n_heads);
    graph_set_heads(graph, "self_attn.kv_b_proj.weight", model->n_heads);
    if (model->mla_gate) {
        int gate = block_linear(graph, options, "self_attn.g_proj", x, model->n_heads * model->v_dim, FALSE, adapted);
        o = sigmoid_gate_add(graph, "self_attn.gate", o, gate);
    }
    return block_linear(graph, options, "self_attn.o_proj", o, model->hidden, FALSE, adapted);
}

extern const BlockClass block_mla_layer;
const BlockClass block_mla_layer = {.title = "multi-head latent attention", .build = mla_build};
