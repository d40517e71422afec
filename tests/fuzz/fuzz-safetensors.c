/* Any bytes: parsed or refused, and every tensor of what was parsed can be read. */
#include <glib.h>
#include <stddef.h>
#include <stdint.h>

#include "models/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autoptr(Safetensors) file = safetensors_parse(data, size, "fuzz", NULL);
    for (int i = 0; file != NULL && i < safetensors_n(file); i++) {
        g_autoptr(Tensor) tensor = safetensors_get(file, safetensors_name(file, i), NULL);
        g_assert(tensor != NULL);
    }
    return 0;
}
