/*
 * Radix sort of 64-bit integers with their positions: a chain of passes over the digits, each with a fixed time and a
 * time per element.
 */
#include "hw/laws/form.h"

enum { FIXED_NS, ELEMENT_PS };

static double sort_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    (void)clock_frac;
    double elements = (double)work->m * (double)MAX(work->n, 1);
    if (work->m == 0) {
        elements = (double)work->read_bytes / 8.0;
    }
    return params[FIXED_NS] * 1e-9 + elements * params[ELEMENT_PS] * 1e-12 * 4.8e12 / device->hbm_bytes_per_s;
}

const LawForm law_form_sort = {
    .n_params = 2,
    .params = {{"fixed_ns", 64000.0, 1000.0, 500000.0}, {"element_ps", 73.0, 1.0, 1000.0}},
    .seconds = sort_seconds,
};
