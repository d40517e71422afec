/*
 * A fused kernel of whom no more is known than how fast it was: a fixed time and a share of the tensor peak.
 */
#include "hw/laws/form.h"

enum { TENSOR_FRACTION, FIXED_NS };

static double rate_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    double rate = form_tensor_rate(device, work->dtype) * params[TENSOR_FRACTION] * clock_frac;
    return params[FIXED_NS] * 1e-9 + work->flops / rate;
}

const LawForm law_form_rate = {
    .n_params = 2,
    .params = {{"tensor_fraction", 0.2, 0.01, 1.0}, {"fixed_ns", 10000.0, 1000.0, 200000.0}},
    .seconds = rate_seconds,
};
