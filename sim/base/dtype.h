/*
 * Number formats: their names in plans and their size in memory.
 *
 * The rounding rules of the low-precision formats (for emulation) are in models/formats.h.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef enum Dtype {
#define DTYPE(id, name, bits) DTYPE_##id,
#include "sim/base/dtype.def"
#undef DTYPE
    N_DTYPES
} Dtype;

/* Name as plans and descriptors write it ("bf16"). Never NULL. */
const char *dtype_name(Dtype dtype);

/* Bits of one element, block scales not counted. */
int dtype_bits(Dtype dtype);

/* Bytes of n elements, rounded up to a whole byte; asserts that n >= 0 and that the product fits. */
int64_t dtype_bytes(Dtype dtype, int64_t n);

/* Format of that name, or FALSE; ret_dtype untouched on failure. */
gboolean dtype_from_name(const char *name, Dtype *ret_dtype);
