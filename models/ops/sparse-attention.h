/*
 * Sparse attention: each token attends to the keys that an indexer selected for it.
 *
 * Two forms. Plain: q, k, v as in attention.h. Absorbed (MLA): the up-projection W of keys and values, per head
 * [B_K; B_V], is applied to the query and to the result instead of to every key,
 *
 *     q~ = [B_Kt q_nope; q_rope]    z = sum over sel p c    o = B_V z,
 *
 * so that all heads share one key [c; k_rope] and one value c. That is what kernels gather: c + r numbers a key.
 */
#pragma once

#include "models/graph.h"

typedef struct SparseAttentionAttr {
    int64_t heads, kv_heads;
    int64_t head_dim, v_dim;  /* absorbed: nope + rope, and v */
    int64_t latent, rope_dim; /* absorbed: c and r; plain: 0 */
    double scale;             /* 0 = head_dim^(-1/2) */
} SparseAttentionAttr;

typedef struct SparseAttentionTensors {
    int o;     /* [TOKENS, heads x v_dim] */
    int lse;   /* [TOKENS, heads], fp32, no gradient */
    int q_abs; /* absorbed: q~ [TOKENS, heads x (latent + rope_dim)], no gradient; plain: -1 */
} SparseAttentionTensors;

/* Adds the plain form over q, k, v and sel (dsa-indexer.h). */
SparseAttentionTensors sparse_attention_add(Graph *graph, const char *name, int q, int k, int v, int sel,
                                            const SparseAttentionAttr *attr);

/*
 * Adds the absorbed form over q [TOKENS, heads x head_dim], the normed latent c, the shared key k_rope and sel.
 * Parameter: PARAM.weight [heads x (head_dim - rope_dim + v_dim), latent], the layer's kv_b projection.
 */
SparseAttentionTensors sparse_mla_add(Graph *graph, const char *name, const char *param, const int inputs[4],
                                      const SparseAttentionAttr *attr);
