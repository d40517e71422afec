/*
 * Blocked matrix product: packed panels in cache, a register tile of vectors in the middle.
 *
 * The loops are those of Goto and van de Geijn: a KC x NC block of B and an MC x KC block of A are copied into panels
 * of tile width, so that the tile kernel reads both in sequence; short edges are padded with zeros. Tile kernels exist
 * for AVX2 with FMA and for AVX-512, and a plain one that compiles anywhere.
 */
#pragma once

#include "models/matmul.h"

/* Widest vectors of this processor, as matmul_choose() numbers them. */
int matmul_vector_level(void);

void matmul_blocked_f64(const Matmul *shape, const double *a, const double *b, double *c);
void matmul_blocked_f32(const Matmul *shape, const float *a, const float *b, float *c);

/* The same with the tile kernel of a level not above the processor's. */
void matmul_blocked_level_f64(int level, const Matmul *shape, const double *a, const double *b, double *c);
void matmul_blocked_level_f32(int level, const Matmul *shape, const float *a, const float *b, float *c);
