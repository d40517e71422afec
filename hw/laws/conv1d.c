/*
 * Depthwise convolutions of the framework: one thread per element and tap, far from any bandwidth (measured on H200: 10 ps per
 * element of the result, forward and input gradient, and 6 ps per element of the gradient that weight gradients sum).
 */
#include "hw/laws/form.h"

enum { FIXED_NS, ELEMENT_PS, WEIGHT_GRAD_PS };

static double conv1d_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    gboolean is_weight_grad = work->write_bytes < work->read_bytes / 2; /* two whole tensors to one of the weights' size */
    double bytes = is_weight_grad ? (double)work->read_bytes / 2.0 : (double)work->write_bytes;
    double per_element_ps = params[is_weight_grad ? WEIGHT_GRAD_PS : ELEMENT_PS];
    (void)clock_frac;
    return params[FIXED_NS] * 1e-9 + form_elements(work, bytes) * per_element_ps * 1e-12 * form_core_scale(device);
}

const LawForm law_form_conv1d = {
    .n_params = 3,
    .params = {{"fixed_ns", 4000.0, 500.0, 50000.0}, {"element_ps", 10.0, 1.0, 50.0}, {"weight_grad_ps", 6.0, 1.0, 50.0}},
    .seconds = conv1d_seconds,
};
