/*
 * Split: parts of the rows of a tensor as tensors of their own (query and gate, latent and shared key).
 *
 * A row is a sequence of equal groups (heads), a group a sequence of parts. Part i of the result holds part i of
 * every group. The parts are views: forward moves nothing. Their gradients meet in one tensor again.
 */
#pragma once

#include "models/graph.h"

enum { SPLIT_PARTS_MAX = 4 };

typedef struct SplitAttr {
    int64_t groups; /* per row */
    int n_parts;
    int64_t widths[SPLIT_PARTS_MAX]; /* of a part in one group; groups x their sum = width of x */
} SplitAttr;

/* Adds the split of x; ret_parts[n_parts] are the tensors, [rows, groups x widths[i]]. */
void split_add(Graph *graph, const char *name, int x, const SplitAttr *attr, int *ret_parts);
