/*
 * Fused optimizer over lists of tensors: memory, but never less than one block needs for its chunk of 65536 elements (a
 * launch over few elements has few blocks, and they all take that long).
 */
#include <math.h>

#include "hw/laws/form.h"

enum { FRACTION, CHUNK_NS };

static double optimizer_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    (void)clock_frac;
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    return fmax(params[CHUNK_NS] * 1e-9, bytes / (device->hbm_bytes_per_s * params[FRACTION]));
}

const LawForm law_form_optimizer = {
    .n_params = 2,
    .params = {{"bandwidth_fraction", 0.72, 0.1, 0.95}, {"chunk_ns", 40000.0, 2000.0, 100000.0}},
    .seconds = optimizer_seconds,
};
