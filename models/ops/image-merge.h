/*
 * Image merge: the mean over the frames of a clip, then the patches of every merge x merge square side by side.
 */
#pragma once

#include "models/graph.h"

typedef struct ImageMergeAttr {
    int64_t merge;  /* edge of the square: 2 */
    int64_t frames; /* of a clip; 1 for images */
    int64_t height; /* patches per column and per row of a frame; values need them, prices do not */
    int64_t width;
} ImageMergeAttr;

/*
 * Adds the merge of x ([PATCHES, C], ordered by clip, frame, row, column). Returns y: [IMAGE_TOKENS,
 * merge^2 x C], where IMAGE_TOKENS = PATCHES / (frames merge^2).
 */
int image_merge_add(Graph *graph, const char *name, int x, const ImageMergeAttr *attr);
