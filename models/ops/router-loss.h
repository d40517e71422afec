/*
 * Router losses: a scalar that pulls the load of the experts towards balance.
 *
 *     aux: coeff E sum_e (c_e / (k T)) P_e, c_e the tokens that chose e (before any drop), P_e the mean score of e,
 *          scores normalised over all experts; per sequence (then averaged) or over the whole micro-batch.
 *     z:   coeff mean_t lse(logits_t)^2
 *
 * The loss is one number for the rows it sees; whoever splits a batch scales it as the main loss.
 */
#pragma once

#include "models/model.h"
#include "models/op.h"

typedef enum RouterLossKind { ROUTER_LOSS_AUX, ROUTER_LOSS_Z } RouterLossKind;

typedef struct RouterLossAttr {
    RouterLossKind kind;
    int64_t experts, top_k;
    RouterScore score; /* aux: sigmoid scores are divided by their sum, the others are a softmax */
    double coeff;
    gboolean per_sequence; /* aux: sequences of rows.seq_len tokens each */
} RouterLossAttr;

/* Adds the loss over a router's logits and sel (sel unused by the z-loss, may be -1). Returns the loss [ONE, 1] fp32.
 */
int router_loss_add(Graph *graph, const char *name, int logits, int sel, const RouterLossAttr *attr);
