/*
 * AdamW: m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, p -= lr (m' / (sqrt v' + eps) + decay p), with
 * m' = m / (1 - b1^t) and v' = v / (1 - b2^t).
 */
#pragma once

#include "models/optim.h"

/* One update; Muon hands its other parameters here. */
void adamw_update(const OptimSettings *settings, Tensor *param, const Tensor *grad, OptimState *state);

/* Kernels of the fused update of these pieces. */
void adamw_cost(const OptimPiece *pieces, int n, Dtype moments, GArray *works);
