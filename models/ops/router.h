/*
 * Router: which experts a token goes to, and with what weight.
 *
 * Symbols: N tokens, h hidden, E experts, k chosen per token.
 *
 *     logits = x Wt (+ b)    [N, E], fp32
 *     score  = softmax or sigmoid of the logits, or the logits themselves (TOPK_SOFTMAX)
 *     sel    = the k largest of score + selection bias, among the best groups; ties: the lower index
 *     weight = score of the chosen, divided by their sum if renorm and k > 1, times scaling
 *              (TOPK_SOFTMAX: softmax over the chosen logits, times scaling)
 *
 * With a capacity factor an expert takes at most C slots of this rank (models/moe-tables.h); a dropped slot
 * is missing from `order` and `counts`, and its weight, which is not renormalised, has no effect.
 */
#pragma once

#include "models/model.h"
#include "models/moe-tables.h"
#include "models/op.h"

/* How a group of experts is scored when only the best groups are open to a token. */
typedef enum RouterGroupScore {
    ROUTER_GROUP_SUM2, /* sum of the two largest biased scores (DeepSeek-V3) */
    ROUTER_GROUP_MAX,  /* largest unbiased score (DeepSeek-V2) */
} RouterGroupScore;

typedef struct RouterAttr {
    int64_t experts, top_k;
    RouterScore score;
    gboolean renorm;
    double scaling;
    int64_t groups, topk_groups; /* 1 and 1 (or 0): no group limit */
    RouterGroupScore group_score;
    gboolean bias_buffer;   /* selection bias e_score_correction_bias [E], moved by models/balance.h */
    gboolean linear_bias;   /* trained bias of the logits (gpt-oss) */
    MoeCapacity capacity;   /* factor 0 = dropless, unless the rows give a capacity */
    int64_t capacity_scope; /* tokens in a row that share the experts' capacities; 0 = all of the run */
    gboolean adaptive;      /* the capacity comes with the rows */
    gboolean padded;        /* every expert has as many slots as its capacity, whether taken or not */
    MoeDrop drop;           /* which slots go when an expert is full */
    gboolean emit_logits;   /* the logits are an output, for router_loss */
} RouterAttr;

/* Tensors that router_add makes. */
typedef struct RouterTensors {
    int weights; /* [TOKENS, k], fp32, by falling selection key */
    int sel;     /* [TOKENS, k] INT64: expert of each choice */
    int order;   /* [TOKENS, k] INT64: flat; entry s is token * k + choice of slot s; slots stand by (expert, token,
                    choice). Past the last slot (dropped ones) -1 */
    int counts;  /* [EXPERTS, 1] INT64: rows for each slot of an expert; their sum is rows[SLOTS] unless slots are padded */
    int logits;  /* [TOKENS, E] fp32, or -1 */
} RouterTensors;

/* The router of a model's MoE layers, dropless. */
RouterAttr router_of_model(const Model *model);

/*
 * Adds a router over x [TOKENS, h]. Parameters "<name>.weight" [E, h], then as the attributes ask
 * "<name>.e_score_correction_bias" [E] (a buffer, fp32) and "<name>.bias" [E].
 *
 * Value runs: rows[SLOTS] cannot be known before the router has run; no output lies in that space. The sum of
 * `counts` is its value for the operators that follow.
 */
RouterTensors router_add(Graph *graph, const char *name, int x, const RouterAttr *attr);
