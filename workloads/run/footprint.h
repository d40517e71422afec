/*
 * Footprint: the memory of a step from lifetimes, without a program.
 *
 * The second computation of what run/ledger reads off the instructions; the two must agree to the byte. Every tensor is an
 * interval over the operators of its graph: from its producer to its last reader, or to the last backward that keeps it; a
 * gradient from the backward of the first reader to the backward of the producer. The intervals of one pass make a
 * profile (what it leaves behind, and the most it holds beyond what it found), gathered and reduced parameters are added
 * at fixed places of it (reference: FSDP2's table of transients), and passes compose: the base of a layer is the sum of
 * what the layers before it left.
 *
 * Sizes are what was asked for, rounded up to 512 bytes each, as Ledger's rounded_… fields have them.
 */
#pragma once

#include "workloads/lower/retention.h"

typedef struct Footprint {
    int64_t static_bytes;        /* between steps */
    int64_t after_forward_bytes; /* after the forward pass of the last micro-batch */
    int64_t peak_bytes;
} Footprint;

/*
 * Memory of the class of ranks at ep_rank of its EP group (routing as for lower_plan). FALSE: not claimed, because the
 * graph has a shape that the intervals do not cover (experts that recomputation does not reach, or splits). retention: what the
 * layers keep, or NULL if nobody knows yet.
 */
gboolean footprint_compute(const Plan *plan, const ModelGraph *graphs, RetentionPlan *retention, const Routing *routing, int64_t ep_rank,
                           Footprint *ret_footprint);
