#include "sim/base/dtype.h"

#include <string.h>

#include "sim/base/quantity.h"

static const struct {
    const char *name;
    int bits;
} dtypes[N_DTYPES] = {
#define DTYPE(id, name, bits) [DTYPE_##id] = {name, bits},
#include "sim/base/dtype.def"
#undef DTYPE
};

const char *dtype_name(Dtype dtype)
{
    g_assert(dtype < N_DTYPES);
    return dtypes[dtype].name;
}

int dtype_bits(Dtype dtype)
{
    g_assert(dtype < N_DTYPES);
    return dtypes[dtype].bits;
}

int64_t dtype_bytes(Dtype dtype, int64_t n)
{
    int64_t bits;
    gboolean fits = quantity_mul(n, dtype_bits(dtype), &bits);
    g_assert(n >= 0 && fits);
    return quantity_div_up(bits, 8);
}

gboolean dtype_from_name(const char *name, Dtype *ret_dtype)
{
    for (int i = 0; i < N_DTYPES; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *ret_dtype = (Dtype)i;
            return TRUE;
        }
    }
    return FALSE;
}
