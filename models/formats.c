#include "models/formats.h"

#include <math.h>
#include <string.h>

#include "sim/base/quantity.h"

/* A small binary format: sign, exponent, mantissa, and what its largest codes mean. */
typedef struct Minifloat {
    int exp_bits, mant_bits, bias;
    gboolean has_inf; /* the largest exponent holds infinity and NaN */
    gboolean has_nan; /* the all-ones magnitude is NaN */
    double max;
} Minifloat;

static const Minifloat e4m3 = {4, 3, 7, FALSE, TRUE, 448};
static const Minifloat e5m2 = {5, 2, 15, TRUE, TRUE, 57344};
static const Minifloat e2m1 = {2, 1, 1, FALSE, FALSE, 6};

static uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

uint16_t format_bf16_encode(float x)
{
    uint32_t bits = float_bits(x);
    if (isnan(x)) { /* keep it a NaN when its low bits go */
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float format_bf16_decode(uint16_t code)
{
    return float_from_bits((uint32_t)code << 16);
}

/* Magnitude to nearest even in units of the format's spacing at that size; exact in double. */
static uint8_t minifloat_encode(const Minifloat *f, float x)
{
    uint32_t sign = signbit(x) ? 1u << (f->exp_bits + f->mant_bits) : 0;
    uint32_t all = (1u << (f->exp_bits + f->mant_bits)) - 1;
    uint32_t inf = ((1u << f->exp_bits) - 1) << f->mant_bits;
    uint32_t max_code = f->has_inf ? inf - 1 : f->has_nan ? all - 1 : all;
    if (isnan(x) && f->has_nan) {
        return (uint8_t)(sign | all);
    }
    double a = isnan(x) ? (double)INFINITY : fabs((double)x);
    if (isinf(a)) {
        return (uint8_t)(sign | (f->has_inf ? inf : max_code));
    }
    int exp;
    frexp(a, &exp); /* a = m 2^exp, m in [0.5, 1) */
    int lowest = 1 - f->bias, e = a > 0 ? MAX(exp - 1, lowest) : lowest;
    double units = rint(ldexp(a, f->mant_bits - e)); /* of 2^(e - mant_bits); ties to even */
    if (ldexp(units, e - f->mant_bits) > f->max) {
        return (uint8_t)(sign | (f->has_inf ? inf : max_code));
    }
    /* A subnormal has e = lowest and fewer units than a hidden one; the sum carries into the exponent by itself. */
    uint32_t code = (uint32_t)units + ((uint32_t)(e - lowest) << f->mant_bits);
    return (uint8_t)(sign | code);
}

static float minifloat_decode(const Minifloat *f, uint8_t code)
{
    uint32_t magnitude = code & ((1u << (f->exp_bits + f->mant_bits)) - 1);
    double sign = (uint32_t)code >> (f->exp_bits + f->mant_bits) & 1u ? -1 : 1;
    uint32_t exp = magnitude >> f->mant_bits, mant = magnitude & ((1u << f->mant_bits) - 1);
    uint32_t top = (1u << f->exp_bits) - 1;
    if (f->has_inf && exp == top) {
        return (float)(mant == 0 ? sign * (double)INFINITY : (double)NAN);
    }
    if (!f->has_inf && f->has_nan && magnitude == (1u << (f->exp_bits + f->mant_bits)) - 1) {
        return NAN;
    }
    if (exp == 0) {
        return (float)(sign * ldexp((double)mant, 1 - f->bias - f->mant_bits));
    }
    return (float)(sign * ldexp((double)(mant | 1u << f->mant_bits), (int)exp - f->bias - f->mant_bits));
}

uint8_t format_e4m3_encode(float x)
{
    return minifloat_encode(&e4m3, x);
}

float format_e4m3_decode(uint8_t code)
{
    return minifloat_decode(&e4m3, code);
}

uint8_t format_e5m2_encode(float x)
{
    return minifloat_encode(&e5m2, x);
}

float format_e5m2_decode(uint8_t code)
{
    return minifloat_decode(&e5m2, code);
}

uint8_t format_e2m1_encode(float x)
{
    return minifloat_encode(&e2m1, x);
}

float format_e2m1_decode(uint8_t code)
{
    return minifloat_decode(&e2m1, code & 15);
}

double format_e8m0_decode(uint8_t code)
{
    return code == 255 ? (double)NAN : ldexp(1, code - 127);
}

int64_t format_n_blocks(const FormatBlocks *b)
{
    return quantity_div_up(b->rows, b->block_rows) * quantity_div_up(b->cols, b->block_cols);
}

/* Elements of one block: rows r0 ... r1 - 1, columns c0 ... c1 - 1. */
typedef struct FormatBlock {
    int64_t r0, r1, c0, c1;
} FormatBlock;

static FormatBlock format_block(const FormatBlocks *b, int64_t idx)
{
    int64_t across = quantity_div_up(b->cols, b->block_cols);
    int64_t r0 = idx / across * b->block_rows, c0 = idx % across * b->block_cols;
    return (FormatBlock){r0, MIN(r0 + b->block_rows, b->rows), c0, MIN(c0 + b->block_cols, b->cols)};
}

/* Smallest power of two that is not below x > 0. */
static float power_of_two_above(float x)
{
    int exp;
    float m = frexpf(x, &exp);
    return ldexpf(1.0f, m > 0.5f ? exp : exp - 1);
}

void format_fp8_quantize(const FormatBlocks *b, const float *x, gboolean ue8m0, float *ret_scale, uint8_t *ret_code)
{
    for (int64_t i = 0; i < format_n_blocks(b); i++) {
        FormatBlock at = format_block(b, i);
        float largest = 1e-4f;
        for (int64_t r = at.r0; r < at.r1; r++) {
            for (int64_t c = at.c0; c < at.c1; c++) {
                largest = fmaxf(largest, fabsf(x[r * b->cols + c]));
            }
        }
        float scale = largest / 448.0f;
        ret_scale[i] = ue8m0 ? power_of_two_above(scale) : scale;
        for (int64_t r = at.r0; r < at.r1; r++) {
            for (int64_t c = at.c0; c < at.c1; c++) {
                ret_code[r * b->cols + c] = format_e4m3_encode(x[r * b->cols + c] / ret_scale[i]);
            }
        }
    }
}

void format_fp8_dequantize(const FormatBlocks *b, const float *scale, const uint8_t *code, float *ret_x)
{
    for (int64_t i = 0; i < format_n_blocks(b); i++) {
        FormatBlock at = format_block(b, i);
        for (int64_t r = at.r0; r < at.r1; r++) {
            for (int64_t c = at.c0; c < at.c1; c++) {
                ret_x[r * b->cols + c] = format_e4m3_decode(code[r * b->cols + c]) * scale[i];
            }
        }
    }
}

/* Exponent of the scale of 32 values: floor(log2 of the largest) less that of the format's largest value. */
static int mx_exponent(const float *x, int max_exponent)
{
    float largest = 0;
    int exp;
    for (int i = 0; i < FORMAT_MX_BLOCK; i++) {
        largest = fmaxf(largest, fabsf(x[i]));
    }
    if (!(largest > 0)) {
        return -127;
    }
    frexpf(largest, &exp);
    return CLAMP(exp - 1 - max_exponent, -127, 127);
}

/* x 2^-exp in double, then to fp32: exact but for values far below the format's smallest. */
static float mx_scaled(float x, int exp)
{
    return (float)ldexp((double)x, -exp);
}

void format_mxfp8_quantize(int64_t n, const float *x, uint8_t *ret_scale, uint8_t *ret_code)
{
    g_assert(n % FORMAT_MX_BLOCK == 0);
    for (int64_t i = 0; i < n; i++) {
        int64_t block = i / FORMAT_MX_BLOCK;
        if (i % FORMAT_MX_BLOCK == 0) {
            ret_scale[block] = (uint8_t)(mx_exponent(x + i, 8) + 127);
        }
        ret_code[i] = format_e4m3_encode(mx_scaled(x[i], ret_scale[block] - 127));
    }
}

void format_mxfp8_dequantize(int64_t n, const uint8_t *scale, const uint8_t *code, float *ret_x)
{
    for (int64_t i = 0; i < n; i++) {
        ret_x[i] = (float)((double)format_e4m3_decode(code[i]) * format_e8m0_decode(scale[i / FORMAT_MX_BLOCK]));
    }
}

void format_mxfp4_quantize(int64_t n, const float *x, uint8_t *ret_scale, uint8_t *ret_packed)
{
    g_assert(n % FORMAT_MX_BLOCK == 0);
    for (int64_t i = 0; i < n; i++) {
        int64_t block = i / FORMAT_MX_BLOCK;
        if (i % FORMAT_MX_BLOCK == 0) {
            ret_scale[block] = (uint8_t)(mx_exponent(x + i, 2) + 127);
        }
        uint8_t code = format_e2m1_encode(mx_scaled(x[i], ret_scale[block] - 127));
        ret_packed[i / 2] = (uint8_t)(i % 2 == 0 ? code : (ret_packed[i / 2] | code << 4));
    }
}

void format_mxfp4_dequantize(int64_t n, const uint8_t *scale, const uint8_t *packed, float *ret_x)
{
    for (int64_t i = 0; i < n; i++) {
        uint8_t code = i % 2 == 0 ? packed[i / 2] & 15 : packed[i / 2] >> 4;
        ret_x[i] = (float)((double)format_e2m1_decode(code) * format_e8m0_decode(scale[i / FORMAT_MX_BLOCK]));
    }
}
