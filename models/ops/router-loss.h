/*
 * Router losses: a scalar that pulls the load of the experts towards balance.
 *
 *     aux: coeff E sum_e (c_e / (k T)) P_e, c_e the tokens that chose e (before any drop), P_e the mean score of e,
 *          scores normalised over all experts; per sequence, per scope_tokens in a row, or over all rows, then averaged.
 *          With counts given, c_e / (k T) is the expert's share of those: of more tokens than the rows, such as all ranks'.
 *     z:   coeff mean_t lse(logits_t)^2
 *
 * The loss is one number for the rows it sees; whoever splits a batch weighs it with the rows' share of its tokens.
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
    int64_t scope_tokens;  /* aux: tokens in a row that are balanced together; 0 = all rows */
    int64_t n_passes;      /* aux with counts: they have so many rows, one for each scope in turn; 0 = 1 */
} RouterLossAttr;

/* Adds the loss over a router's logits and sel (sel unused by the z-loss, may be -1). Returns the loss [ONE, 1] fp32. */
int router_loss_add(Graph *graph, const char *name, int logits, int sel, const RouterLossAttr *attr);

/* The aux loss with the counts of router_counts_add() (n_passes the same) instead of sel. */
int router_loss_add_counted(Graph *graph, const char *name, int logits, int counts, const RouterLossAttr *attr);
