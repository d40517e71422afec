/*
 * Mamba-2 core: short convolution, state-space scan and gated RMSNorm between the two projections of the layer.
 * It is priced; it has no value kernels.
 */
#pragma once

#include "models/graph.h"

typedef struct Mamba2Attr {
    int64_t heads;
    int64_t head_dim;
    int64_t groups; /* of B and C */
    int64_t state;
    int64_t kernel; /* taps of the convolution */
    int64_t chunk;  /* tokens per chunk; 0 = 256 */
} Mamba2Attr;

/* Width of the input projection's result: z, x, B, C and dt side by side. */
int64_t mamba2_in_width(const Mamba2Attr *attr);

/*
 * Adds PREFIX.scan on zxbcdt ([TOKENS, mamba2_in_width]); parameters PREFIX.conv1d.weight [channels, 1, kernel],
 * PREFIX.conv1d.bias, PREFIX.A_log, PREFIX.D, PREFIX.dt_bias [heads] and PREFIX.norm.weight [heads x head_dim].
 * Returns y: [TOKENS, heads x head_dim].
 */
int mamba2_add(Graph *graph, const char *prefix, int zxbcdt, const Mamba2Attr *attr);
