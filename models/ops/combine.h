/*
 * Combine: brings expert outputs back to the ranks that sent the rows; the inverse of dispatch.
 *
 * A local reorder from expert-major to order of arrival, then the all-to-all with swapped splits. Values: the kernel
 * does the reorder, [RECEIVED, l] to [RECEIVED, l] in order of arrival; the exchange that follows is the caller's, who
 * in backward hands in dout as it came back from the exchange, in order of arrival.
 */
#pragma once

#include "models/op.h"

typedef struct CombineAttr {
    int64_t ep_size;
} CombineAttr;

/*
 * Adds a combine of y [RECEIVED, l] with dispatch's `arrival`. Returns [SLOTS, l] (MEM_DISPATCH). Without expert
 * parallelism: y itself.
 */
int combine_add(Graph *graph, const char *name, int y, int arrival);
