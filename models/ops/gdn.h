/*
 * Gated delta net: the delta rule with one decay per head. Covers all between the projections: L2 norm of q
 * and k, decay gate -exp(A_log) softplus(a + dt_bias), write strength, chunks.
 */
#pragma once

#include "models/graph.h"

typedef struct GdnAttr {
    int64_t heads;       /* of q and k */
    int64_t value_heads; /* of v, a, beta, o: a multiple of heads */
    int64_t key_dim;
    int64_t value_dim;
    int64_t chunk;      /* tokens per chunk; 0 = 64 */
    gboolean recurrent; /* values by the token-by-token form, which judges the chunked one */
} GdnAttr;

/*
 * Adds the operator PREFIX.gdn with parameters PREFIX.A_log and PREFIX.dt_bias [value_heads], fp32 and without
 * weight decay. q, k: [TOKENS, heads x key_dim]; v: [TOKENS, value_heads x value_dim]; a and beta_logit:
 * [TOKENS, value_heads]. Returns o: [TOKENS, value_heads x value_dim].
 */
int gdn_add(Graph *graph, const char *prefix, const int qkvab[5], const GdnAttr *attr);
