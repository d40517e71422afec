/*
 * Frames: what programs have in common whose plans differ in how the loss is cut, and in how many micro-batches there
 * are.
 *
 * A step has parts: a micro-batch up to the head, the head, the end of the forward pass, the head's backward pass, the
 * rest of backward; last the optimizer. Plans of one frame lower to equal calls of equal segments but for the two parts
 * of the head. A frame keeps the lowering of one of them; a program of another one is the frame's runs of calls,
 * copied, with the calls of its own head between them. So a program costs what its head costs, and interpreters know
 * equal runs by their numbers.
 *
 * Invariants: (1) the frame's segments come first in its programs, in one order, so that its calls are equal byte by
 * byte; (2) buffers and tokens of the frame have the same numbers in all its programs: the losses, of which each
 * program has its own number, come last.
 */
#pragma once

#include "workloads/lower/lowering.h"

typedef enum StepPart {
    PART_TO_HEAD,
    PART_HEAD_FORWARD,
    PART_BETWEEN,
    PART_HEAD_BACKWARD,
    PART_FROM_HEAD,
    N_BATCH_PARTS /* of a micro-batch */
} StepPart;

/* Appends a part of a micro-batch. */
void lowering_part(StepState *state, StepPart part);

/* Of the first micro-batch, of a later one, and the optimizer. */
enum { N_STEP_PARTS = 2 * N_BATCH_PARTS + 1, PART_OPTIMIZER = N_STEP_PARTS - 1 };

/* Where the parts of a lowering begin (first[N_STEP_PARTS]: the end), and what the lowering knew there. Parts that a
 * plan does not have are empty. */
typedef struct StepParts {
    guint first[N_STEP_PARTS + 1];
    StepState states[N_STEP_PARTS];
} StepParts;

typedef struct LowerFrame LowerFrame;

/* Whether a part is lowered for every plan of a frame. */
gboolean step_part_is_head(int part);

/* The frame of a plan, or NULL. Only with a cache and a scope. */
const LowerFrame *lower_frame_find(const Lowering *lowering);

/* Makes the frame of a lowering that is done, and leaves it in its cache: takes over everything that the lowering owns.
 */
const LowerFrame *lower_frame_keep(Lowering *lowering, const StepParts *parts);

/*
 * Starts a lowering (plan, graphs, cache and emitter are set) with what the frame knows: groups, rows, tables, static
 * memory, the frame's segments. It borrows all of that; only its program and its table of segments are its own.
 */
void lower_frame_start(const LowerFrame *frame, Lowering *lowering);

/* What the frame's lowering knew before a part, for another lowering. */
StepState lower_frame_state(const LowerFrame *frame, int part, Lowering *lowering);

/* Appends the calls of a part, as a run unless they stand between two parts of the head: few calls, behind which
 * nothing is alike. */
void lower_frame_add_run(const LowerFrame *frame, int part, Program *program);
