/*
 * Patch embedding of a vision tower: a linear layer over the pixels of a patch plus a learned position table,
 * read by bilinear interpolation.
 */
#pragma once

#include "models/graph.h"

typedef struct PatchEmbedAttr {
    int64_t patch_width; /* channels x patch x patch */
    int64_t hidden;
    int64_t table; /* edge of the position table, in rows */
} PatchEmbedAttr;

/*
 * Adds the embedding of patches ([PATCHES, patch_width]) at grid ([PATCHES, 2]: row and column of each patch in
 * cells of the position table, fractions interpolate; fp32, no gradient). Parameters: PREFIX.proj.weight [hidden,
 * patch_width] and PREFIX.pos_emb.weight [table x table, hidden]. Returns y: [PATCHES, hidden].
 */
int patch_embed_add(Graph *graph, const char *prefix, int patches, int grid, const PatchEmbedAttr *attr);
