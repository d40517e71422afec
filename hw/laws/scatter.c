/*
 * Adding rows into rows that may collide: atomic additions of pairs of elements.
 */
#include "hw/laws/form.h"

enum { FIXED_NS, FRACTION };

static double scatter_seconds(const Device *device, const double *params, const Work *work, TimingRegime regime)
{
    (void)regime;
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    return params[FIXED_NS] * 1e-9 + bytes / (device->hbm_bytes_per_s * params[FRACTION]);
}

const LawForm law_form_scatter = {
    .n_params = 2,
    .params = {{"fixed_ns", 5000.0, 500.0, 100000.0}, {"bandwidth_fraction", 0.155, 0.005, 1.0}},
    .seconds = scatter_seconds,
};
