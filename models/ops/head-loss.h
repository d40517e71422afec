/*
 * Output head and cross entropy in one operator: logits are made slice by slice of the vocabulary, used and dropped,
 * once in forward (running maximum and sum of exponentials) and once more in backward.
 *
 * Kept: the hidden rows, the labels and one log-sum-exp per token. Of the logits only one slice exists at a time.
 */
#pragma once

#include "models/ops/cross-entropy.h"

/*
 * Adds head and loss over x [TOKENS, h] and labels [TOKENS, 1] (INT64). Parameter NAME.weight [vocab, h]
 * (PARAM_HEAD). Slices have vocab_chunk columns (the last may have fewer), 0 = the whole vocabulary. Returns the
 * loss as cross_entropy_add() does.
 */
int head_loss_add(Graph *graph, const char *name, int x, int labels, int64_t vocab, int64_t vocab_chunk,
                  const CrossEntropyAttr *attr);

/* Gives an operator that head_loss_add() added slices of another width, nothing else. */
void head_loss_set_chunk(Graph *graph, int op, int64_t vocab_chunk);
