/*
 * Token split: cuts rows of tokens into chunks of consecutive tokens, for what runs chunk by chunk (the exchanges of a MoE
 * layer and what lies between them). The chunks are views; their gradients are joined by one copy, as torch.split does.
 */
#pragma once

#include "models/op.h"

/* Adds the chunks of x [TOKENS, w]: ret_chunks[n], each in the chunk's own space; n at most TOKEN_CHUNKS_MAX. */
void token_split_add(Graph *graph, const char *name, int x, int n, int *ret_chunks);

/* Sizes of a sample: rows and their width, cut into n chunks. */
typedef struct TokenSample {
    int64_t rows, width;
    int n;
} TokenSample;

/* The idx-th of those that this operator and its inverse are checked with, and its rows; NULL behind the last. */
const TokenSample *token_split_sample_size(int idx, RowCounts *rows);
