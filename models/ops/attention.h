/*
 * Scaled dot-product attention, grouped-query, inside sequences, as one flash kernel.
 *
 * Symbols: H query heads, Hk key heads (query head j reads key head j / (H / Hk)), d size of q and k, dv size of v.
 *
 *     s = scale q k    p = softmax over the visible keys    o = sum p v    lse = log sum exp s
 *
 * A token sees its own sequence: all of it, or (causal) itself and what is before, or the last `window` of that. A
 * sink is a trained score per head that takes part in the softmax and has no value.
 */
#pragma once

#include "models/graph.h"

typedef struct AttentionAttr {
    int64_t heads, kv_heads;
    int64_t head_dim, v_dim;
    double scale; /* of the scores; 0 = head_dim^(-1/2) */
    gboolean causal;
    int64_t window; /* keys that a token sees, itself included; 0 = no limit */
    gboolean sinks; /* parameter NAME.sinks [heads] */
} AttentionAttr;

typedef struct AttentionTensors {
    int o;   /* [rows, heads x v_dim] */
    int lse; /* [rows, heads], fp32, no gradient */
} AttentionTensors;

/*
 * Adds attention over q [rows, H d], k [rows, Hk d] and v [rows, Hk dv]. rows are TOKENS, or PATCHES: one image per
 * sequence if their number divides, else one image.
 */
AttentionTensors attention_add(Graph *graph, const char *name, int q, int k, int v, const AttentionAttr *attr);
