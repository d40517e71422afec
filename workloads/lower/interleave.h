/*
 * Interleaved micro-batches: the forward pass of the next one runs between parts of the backward pass of this one, so that
 * each computes while rows of the other travel (expert parallelism with overlapped all-to-all, as in DualPipe and Megatron).
 *
 * A layer's pass is cut where rows have left and nobody waits for them yet: at its dispatch and its combine. Layer i forward
 * stands beside layer n - 1 - i backward:
 *   compute  B to combine | F from combine, to dispatch | B experts, to dispatch | F experts, to combine | B from dispatch
 *   rows                  | B combine                   | F dispatch             | B dispatch           | F combine
 * What F does behind its combine waits until the next layer of B has begun, so that B's rows are on their way meanwhile. The
 * first forward and the last backward pass of a step stand alone.
 *
 * Activations of two micro-batches are alive, of one what backward has left, of the other what forward has made: their buffers
 * are two sides, of even and of odd micro-batches. Two pairs of passes in a row are therefore what repeats.
 */
#pragma once

#include "workloads/lower/lowering.h"

/* Every pass of a step with at least two micro-batches, from the side of an even one; the optimizer's step is still to come. */
void lower_interleaved(StepState *state);
