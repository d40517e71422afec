/*
 * Golden training runs: a folder with config.json, run.json, tokens, weights and curves of an independent
 * implementation, repeated step by step by the trainer.
 *
 * Compared: loss, other losses, gradient norm, learning rate and expert loads of every step, the gradient of every
 * tensor at step 1, the final weights. Float32 runs are held to wider bounds and fewer steps where routing makes
 * trajectories part (golden/README.md).
 */
#pragma once

#include <glib.h>

#include "models/tensor.h"

/* Largest errors as parts of their bounds, and where. */
typedef struct GoldenTrainResult {
    gboolean passed;
    int64_t n_steps;
    double loss, grad_norm, step1_grad, weights; /* parts of the bounds */
    gboolean loads;                              /* equal wherever they have to be */
    char message[256];                           /* first thing that was off */
} GoldenTrainResult;

/* Runs max_steps steps of the run (0 = all). FALSE and an error when the folder cannot be read or run. */
gboolean golden_train(const char *folder, TensorType real, int64_t max_steps, GoldenTrainResult *ret_result,
                      GError **error);
