/*
 * Top-k of rows: passes over each row by radix selection, then a sort of what was found.
 */
#include "hw/laws/form.h"

enum { FIXED_NS, FRACTION };

static double topk_seconds(const Device *device, const double *params, const Work *work, TimingRegime regime)
{
    (void)regime;
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    return params[FIXED_NS] * 1e-9 + bytes / (device->hbm_bytes_per_s * params[FRACTION]);
}

const LawForm law_form_topk = {
    .n_params = 2,
    .params = {{"fixed_ns", 15000.0, 500.0, 100000.0}, {"bandwidth_fraction", 0.03, 0.001, 1.0}},
    .seconds = topk_seconds,
};
