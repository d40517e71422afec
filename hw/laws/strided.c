/*
 * Element-by-element kernels over views: index arithmetic for each element written, or memory, whichever is slower.
 */
#include <math.h>

#include "hw/laws/form.h"

enum { FIXED_NS, FRACTION, ELEMENT_PS };

static double strided_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    (void)clock_frac;
    /* The arithmetic belongs to the multiprocessors: a device with more of them, or wider memory, is faster. */
    double elements = form_elements(work, (double)work->write_bytes);
    double arithmetic = elements * params[ELEMENT_PS] * 1e-12 * form_core_scale(device);
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    double memory = bytes / (device->hbm_bytes_per_s * params[FRACTION]);
    return params[FIXED_NS] * 1e-9 + fmax(arithmetic, memory);
}

const LawForm law_form_strided = {
    .n_params = 3,
    .params = {{"fixed_ns", 2000.0, 500.0, 20000.0},
               {"bandwidth_fraction", 0.85, 0.85, 0.85},
               {"element_ps", 3.0, 0.5, 20.0}},
    .seconds = strided_seconds,
};
