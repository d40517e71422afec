/*
 * Radix sort of integers with their positions: a chain of passes, each with a fixed time and a time per element.
 */
#include "hw/laws/form.h"

enum { FIXED_NS, NS_PER_1000 };

static double sort_seconds(const Device *device, const double *params, const Work *work, TimingRegime regime)
{
    (void)device;
    (void)regime;
    double elements = (double)work->m * (double)(work->n > 0 ? work->n : 1);
    return (params[FIXED_NS] + params[NS_PER_1000] * elements * 1e-3) * 1e-9;
}

const LawForm law_form_sort = {
    .n_params = 2,
    .params = {{"fixed_ns", 84000.0, 1000.0, 500000.0}, {"ns_per_1000_elements", 83.0, 1.0, 10000.0}},
    .seconds = sort_seconds,
};
