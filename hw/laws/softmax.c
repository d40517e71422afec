/*
 * Softmax of rows, forward or backward.
 *
 * Forward passes over a row three times. While the rows at work fit in the L2 cache, the second and third pass come
 * from there; wider rows come from memory again. Backward is known by its two inputs.
 */
#include "hw/laws/form.h"

enum { FORWARD_FRACTION, WIDE_FRACTION, BACKWARD_FRACTION, FIXED_NS };

static double softmax_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    (void)clock_frac;
    double fraction = params[FORWARD_FRACTION];
    if (work->write_bytes > 0 && work->read_bytes >= 2 * work->write_bytes) {
        fraction = params[BACKWARD_FRACTION];
    } else if (work->m > 0 &&
               (double)work->write_bytes / (double)work->m * (double)device->n_sms > (double)device->l2_bytes / 2.0) {
        fraction = params[WIDE_FRACTION];
    }
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    return params[FIXED_NS] * 1e-9 + bytes / (device->hbm_bytes_per_s * fraction);
}

const LawForm law_form_softmax = {
    .n_params = 4,
    .params = {{"forward_fraction", 0.5, 0.1, 0.95},
               {"wide_fraction", 0.42, 0.1, 0.95},
               {"backward_fraction", 0.6, 0.1, 0.95},
               {"fixed_ns", 2000.0, 500.0, 20000.0}},
    .seconds = softmax_seconds,
};
