/*
 * Choices: which experts each token takes, so that every rank sends each expert exactly the tokens that measured loads
 * say.
 *
 * A rank's tokens are dealt to its experts in turn: expert after expert takes the next tokens, round and round. No
 * expert takes more than all tokens, so no token gets an expert twice.
 */
#pragma once

#include "workloads/plan/routing.h"

typedef struct Choices Choices;

/* Of a plan whose loads are measured, for its whole batch: [ranks][micro-batches][tokens]. NULL for other plans. */
Choices *choices_new(const Plan *plan);
void choices_free(Choices *choices);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Choices, choices_free)

/* [n_layers], each [tokens of the batch][top_k], or NULL for a layer without experts. NULL for NULL. */
const int64_t *const *choices_by_layer(const Choices *choices);

/* Tokens of a rank's micro-batch that take an expert of a layer. */
int64_t choices_load(const Choices *choices, int64_t layer, int64_t rank, int64_t expert);
