/*
 * Low-precision formats, bit exact: rounding of fp32 to codes and back, element by element and in scaled blocks.
 *
 * All rounding is to nearest, ties to even. bf16 and E5M2 overflow to infinity; E4M3 (no infinity, one NaN per sign)
 * and E2M1 saturate. Blocks: FP8 with one fp32 scale per 1x128 or 128x128 block (or a scale rounded up to a power of
 * two), MXFP8 and MXFP4 with one E8M0 scale per 32 values. The rules are those of fsdp_memory.md 7.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

enum { FORMAT_MX_BLOCK = 32, FORMAT_FP8_BLOCK = 128 };

uint16_t format_bf16_encode(float x);
float format_bf16_decode(uint16_t code);

uint8_t format_e4m3_encode(float x);
float format_e4m3_decode(uint8_t code);

uint8_t format_e5m2_encode(float x);
float format_e5m2_decode(uint8_t code);

/* Codes 0 ... 15 (sign, 2 bits of exponent, 1 of mantissa). NaN becomes the largest value: the format has none. */
uint8_t format_e2m1_encode(float x);
float format_e2m1_decode(uint8_t code);

/* 2^(code - 127); 255 is NaN. */
double format_e8m0_decode(uint8_t code);

/* How x [rows, cols] is cut: blocks of block_rows x block_cols, those at the edges smaller. */
typedef struct FormatBlocks {
    int64_t rows, cols;
    int64_t block_rows, block_cols;
} FormatBlocks;

/* Scales of such a cut: [ceil(rows / block_rows), ceil(cols / block_cols)]. */
int64_t format_n_blocks(const FormatBlocks *blocks);

/*
 * FP8 E4M3: per block scale = max(largest |x|, 1e-4) / 448 in fp32, or that rounded up to a power of two (ue8m0); codes
 * of x / scale. ret_scale has format_n_blocks() entries, ret_code rows x cols.
 */
void format_fp8_quantize(const FormatBlocks *blocks, const float *x, gboolean ue8m0, float *ret_scale,
                         uint8_t *ret_code);
void format_fp8_dequantize(const FormatBlocks *blocks, const float *scale, const uint8_t *code, float *ret_x);

/*
 * MX: n values (a multiple of 32) with one scale code per 32. MXFP8 has a byte per value, MXFP4 two values per byte,
 * the first in the low half.
 */
void format_mxfp8_quantize(int64_t n, const float *x, uint8_t *ret_scale, uint8_t *ret_code);
void format_mxfp8_dequantize(int64_t n, const uint8_t *scale, const uint8_t *code, float *ret_x);
void format_mxfp4_quantize(int64_t n, const float *x, uint8_t *ret_scale, uint8_t *ret_packed);
void format_mxfp4_dequantize(int64_t n, const uint8_t *scale, const uint8_t *packed, float *ret_x);
