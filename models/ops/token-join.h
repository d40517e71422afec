/*
 * Token join: the rows of all tokens from those of their chunks (token-split.h), by one copy; backward copies each chunk's part
 * of the gradient.
 */
#pragma once

#include "models/op.h"

/* Adds y [TOKENS, w] of the chunks [each in its own space, w]. Returns y. */
int token_join_add(Graph *graph, const char *name, const int *chunks, int n);
