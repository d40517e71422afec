/*
 * Embedding: the row of a table for every token.
 */
#pragma once

#include "models/graph.h"

/*
 * Adds y[t] = W[ids[t]]; ids is a [rows, 1] INT64 tensor. Parameter: NAME.weight [vocab, hidden]. Returns y.
 */
int embedding_add(Graph *graph, const char *name, int ids, int64_t vocab, int64_t hidden);
