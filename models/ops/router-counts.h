/*
 * Router counts: how many tokens chose each expert, before any drop, summed over all ranks: what a balancing loss over a
 * whole batch needs. No gradient.
 *
 * A step of several micro-batches knows no counts of those to come: each takes its own and those of the ones before it. On
 * one rank all of them may be rows of one run: pass_tokens in a row belong to a pass, and n_passes take turns.
 */
#pragma once

#include "models/op.h"

typedef struct RouterCountsAttr {
    int64_t experts, top_k;
    int64_t pass_tokens; /* tokens in a row of a pass; 0 = all rows */
    int64_t n_passes;    /* rows of counts, each with those of the passes before it; 0 = 1 */
} RouterCountsAttr;

/* Adds the counts of a router's sel [TOKENS, k]. Returns them: [ONE, n_passes x experts], INT64. */
int router_counts_add(Graph *graph, const char *name, int sel, const RouterCountsAttr *attr);
