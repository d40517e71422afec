/*
 * Chunked linear attention and other scans: time per token and head, with a floor from the chain of chunks.
 */
#include <math.h>

#include "hw/laws/form.h"

enum { FIXED_NS, EFFICIENCY, MEMORY_FRACTION };

static double kda_seconds(const Device *device, const double *params, const Work *work, TimingRegime regime)
{
    (void)regime;
    double compute = work->flops / (device->peak_flops_per_s[work->dtype] * params[EFFICIENCY]);
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    return params[FIXED_NS] * 1e-9 + fmax(compute, bytes / (device->hbm_bytes_per_s * params[MEMORY_FRACTION]));
}

const LawForm law_form_kda = {
    .n_params = 3,
    .params = {{"fixed_ns", 100000.0, 500.0, 2000000.0},
               {"efficiency", 0.1, 0.005, 1.0},
               {"memory_fraction", 0.2, 0.02, 1.0}},
    .seconds = kda_seconds,
};
