/*
 * FP8 products: the block-scaled recipe (fsdp_memory.md 7, "block FP8").
 *
 * All three products of a weight run in FP8 with results in the compute type. An operand is scaled per block of 128 values along
 * the product's inner size (activations and gradients, 1 x 128) or per 128 x 128 (weights), with an fp32 scale a block; a kernel
 * per operand reads it once, finds the largest of each block and writes codes and scales. Who is read along both of its sides has
 * two sets of codes, from one kernel:
 *
 *     forward    x by rows, w                    y  = x w^T
 *     backward   dy by rows, w again             dx = dy w
 *                dy by columns, x by columns     dw = dy^T x
 *
 * x by columns is made in the forward pass and kept in place of x: one byte and 1/32 an element. Whoever reads the same x keeps
 * codes of its own, and x itself stays as long as any other operator keeps it: FP8 saves memory or costs some, as it happens.
 * Codes of weights live as long as the products that read them: they are made in each pass, as gathered parameters are, unless
 * they are kept from step to step (Op.fp8_codes): then each weight has codes for both sides, made once when it has changed.
 *
 * Values: kernels compute in full precision and keep x where the codes would be; memory and time are those of FP8.
 */
#pragma once

#include "models/op.h"

enum { FP8_BLOCK = 128, FP8_ALIGN = 16 }; /* libraries take sizes in steps of 16 */

/* A product y[m,n] = x[m,k] w[n,k]^T, w of n_weights matrices; bytes of an element of the compute type. */
typedef struct Fp8Product {
    int64_t m, n, k, n_weights;
    int64_t elem_bytes;
    gboolean has_codes; /* of w, before the product */
} Fp8Product;

/* Codes of n_weights matrices [n, k] for one side, with their scales. */
int64_t fp8_weight_bytes(int64_t n_weights, int64_t n, int64_t k);

/* Codes of x by columns and their scales: auxiliary tensors 0 and 1, in the rows of x. */
enum { FP8_AUX_CODES, FP8_AUX_SCALES };
void fp8_save_input(OpSaved *saved, RowSpace rows, int64_t k);

/*
 * Kernels around the products. Before a forward product: x (by columns, too, if kept) and w. Before backward: dy for the
 * gradients that are wanted, and w for that of x. They add to the workspace what is alive while the products run.
 */
void fp8_forward_operands(OpCost *cost, const Fp8Product *product, gboolean keeps_input);
void fp8_backward_operands(OpCost *cost, const Fp8Product *product, gboolean to_input, gboolean to_weight);

/* The last kernel of a cost becomes an FP8 product: operands have a byte an element, the result keeps its type. */
void fp8_product(OpCost *cost);
