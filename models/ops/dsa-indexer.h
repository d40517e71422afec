/*
 * DSA indexer: which earlier tokens a token attends to (DeepSeek sparse attention).
 *
 * Symbols: J index heads, d their size, K keys selected.
 *
 *     I[t,s] = scale sum_j w[t,j] max(0, q[t,j] k[s])     s in the sequence of t, s <= t
 *     sel(t) = the K largest of I[t,.], ascending; ties: the lower index; -1 where fewer exist
 *
 * Nothing flows back from the selection; the indexer learns through dsa_kl alone.
 */
#pragma once

#include "models/graph.h"
#include "models/model.h"

typedef struct DsaIndexerAttr {
    int64_t heads, dim, top_k;
    double scale;         /* of the weights: (heads dim)^(-1/2) in whole layers, 1 for given weights */
    gboolean no_relu;     /* some variants: no max(0, .) */
    gboolean emit_scores; /* I is an output: [PAIRS, 1] fp32, sequence after sequence, 0 where s > t */
} DsaIndexerAttr;

typedef struct DsaIndexerTensors {
    int q, k, w; /* [TOKENS, J d], [TOKENS, d], [TOKENS, J]: what dsa_kl reads */
    int sel;     /* [TOKENS, K] INT32: token indices in the batch */
    int scores;  /* or -1 */
} DsaIndexerTensors;

/* Adds the selection alone, over given q, k, w. */
DsaIndexerTensors dsa_indexer_add(Graph *graph, const char *name, int q, int k, int w, const DsaIndexerAttr *attr);

/* The projections of a whole indexer. */
typedef struct DsaIndexerLayer {
    DsaIndexerAttr select;
    double norm_eps;    /* of the LayerNorm of the keys */
    int64_t rotary_dim; /* leading numbers of q and k that are rotated (half-split layout); 0 = none */
    double rope_base;
} DsaIndexerLayer;

/*
 * Adds a whole indexer over the layer input x and the normed query latent cq, both detached: no gradient flows to
 * them. Parameters: PREFIX.wq_b.weight [J d, q latent], PREFIX.wk.weight [d, h], PREFIX.k_norm.{weight,bias} [d],
 * PREFIX.weights_proj.weight [J, h]. positions: as rope_add's.
 */
DsaIndexerTensors dsa_indexer_layer_add(Graph *graph, const char *prefix, int x, int cq, int positions,
                                        const DsaIndexerLayer *layer);
