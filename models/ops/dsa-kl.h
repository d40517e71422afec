/*
 * DSA indexer loss: KL divergence from the attention's own distribution to the indexer's.
 *
 *     p[t,s] = sum over heads of P_h[t,s], divided by its sum over s      P = exp(scale q k - lse), no gradient
 *     loss   = coeff / tokens  sum_t sum_s p (log max(p, 1e-10) - log softmax(I)[t,s])
 *
 * s runs over sel(t) (sparse stage) or over all s <= t of the sequence (dense warm-up, sel = -1). Scores and
 * probabilities are recomputed tile by tile; nothing of size tokens x tokens is held.
 */
#pragma once

#include "models/graph.h"
#include "models/ops/dsa-indexer.h"

typedef struct DsaKlAttr {
    DsaIndexerAttr index;
    double coeff;
    int64_t heads, kv_heads; /* of the attention */
    int64_t head_dim;        /* of q: numbers of k, and of k_tail behind them */
    int64_t tail_dim;        /* numbers of a key that all heads share and that lie in k_tail; 0 = none */
    double scale;            /* 0 = head_dim^(-1/2) */
} DsaKlAttr;

/* What the target distribution is recomputed from: tensors of the attention. */
typedef struct DsaKlTarget {
    int q;      /* [TOKENS, heads x head_dim] */
    int k;      /* [TOKENS, kv_heads x (head_dim - tail_dim)] */
    int k_tail; /* [TOKENS, tail_dim], or -1 */
    int lse;    /* [TOKENS, heads] */
} DsaKlTarget;

/* Adds the loss; gradients flow to the indexer's q, k and w only. Returns it: [ONE, 1], fp32. */
int dsa_kl_add(Graph *graph, const char *name, const DsaIndexerTensors *indexer, gboolean dense,
               const DsaKlTarget *target, const DsaKlAttr *attr);
