/*
 * Cross entropy of logits with label smoothing, z-loss and a soft cap.
 *
 * Symbols: N tokens, V vocabulary, l label smoothing, zeta z-loss. A row with a valid label y has
 *
 *     z <- cap tanh(z / cap)     lse = log sum_v exp z_v
 *     loss = (1 - l) (lse - z_y) + l (lse - mean_v z_v) + zeta lse^2
 *
 * and a row whose label is ignore_index has loss 0 and gradient 0.
 *
 * Over several chunks, micro-batches or ranks the mean must be taken over all of their valid labels: use
 * LOSS_SUM and hand the gradient 1 / valid labels to each part.
 */
#pragma once

#include "models/graph.h"

typedef enum LossReduction { LOSS_MEAN, LOSS_SUM, LOSS_NONE } LossReduction;

typedef struct CrossEntropyAttr {
    int64_t ignore_index;
    double label_smoothing;
    double z_loss;
    double softcap; /* 0 = none */
    LossReduction reduction;
} CrossEntropyAttr;

enum { CROSS_ENTROPY_IGNORE = -100 }; /* the usual ignore_index */

/*
 * Adds the loss of logits [TOKENS, V] with labels [TOKENS, 1] (INT64); returns it: [ONE, 1], or [TOKENS, 1] for
 * LOSS_NONE, in high precision. Marks the logits as MEM_LOGITS.
 */
int cross_entropy_add(Graph *graph, const char *name, int logits, int labels, const CrossEntropyAttr *attr);
