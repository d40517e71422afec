/* Any text as a size, a rate and a time: no crash, and what is read is in range and prints. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "sim/base/quantity.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autofree char *text = g_strndup((const char *)data, size);
    int64_t integer;
    double real;
    if (quantity_parse_bytes(text, &integer, NULL)) {
        g_assert(integer >= 0);
        g_free(quantity_format_bytes(integer));
    }
    if (quantity_parse_time(text, &integer, NULL)) {
        g_assert(integer >= 0);
        g_free(quantity_format_time(integer));
    }
    if (quantity_parse_rate(text, &real, NULL)) {
        g_assert(real >= 0 && isfinite(real));
        g_free(quantity_format_rate(real));
    }
    return 0;
}
