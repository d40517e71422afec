/*
 * Depthwise causal short convolution, optionally followed by SiLU: one tap vector per channel.
 */
#pragma once

#include "models/graph.h"

typedef struct ShortConvAttr {
    int64_t channels;
    int64_t kernel; /* taps; the last one meets the token itself */
    gboolean silu;
} ShortConvAttr;

/*
 * Adds the convolution of x ([rows, channels]); the parameter is NAME.weight [channels, 1, kernel], kept in fp32.
 * Returns y, of the shape of x. Windows do not reach across the start of a sequence. A second input, the kernel - 1
 * rows before each sequence ([SEQUENCES, (kernel - 1) x channels], oldest first), may be added to the operator.
 */
int short_conv_add(Graph *graph, const char *name, int x, int64_t channels, int64_t kernel, gboolean silu);
