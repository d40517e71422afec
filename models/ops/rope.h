/*
 * RoPE: rotary position embedding, over some of the numbers of every head.
 *
 * Pair i of a head turns by position x base^(-2i/rotary_dim). In the two-dimensional form (vision) even pairs turn
 * with the column and odd pairs with the row of a patch: pairs 2i and 2i + 1 by base^(-4i/rotary_dim).
 */
#pragma once

#include "models/graph.h"
#include "models/model.h"

typedef struct RopeAttr {
    int64_t heads, head_dim;
    int64_t offset;     /* first rotated number of a head: MLA's queries rotate their last ones */
    int64_t rotary_dim; /* how many are rotated; even */
    double base;
    RopeLayout layout; /* ROPE_HALF or ROPE_INTERLEAVED */
    gboolean planar;   /* two-dimensional positions; layout must be ROPE_INTERLEAVED */
} RopeAttr;

/*
 * Adds the rotation of x ([rows, heads x head_dim]). positions: [rows, 1] numbers, or -1 = place inside the sequence;
 * planar: [rows, 2], row and column, as patch_embed's grid. No gradient flows to positions. Returns y.
 */
int rope_add(Graph *graph, const char *name, int x, int positions, const RopeAttr *attr);
