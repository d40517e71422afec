/*
 * Copies, casts and fills.
 *
 * Three speeds: reads and writes that go on together; fills, which only write; and casts to a wider format, which the
 * framework runs element by element (bf16 to fp32 logits: 2.0 TB/s where a copy reaches 4.2).
 */
#include "hw/laws/form.h"

enum { FIXED_NS, FRACTION, FILL_FRACTION, WIDEN_FRACTION, RAMP_NS, HALF_BYTES };

static double copy_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    (void)clock_frac;
    double fraction = params[FRACTION];
    if (work->read_bytes == 0) {
        fraction = params[FILL_FRACTION];
    } else if (work->write_bytes >= 2 * work->read_bytes) {
        fraction = params[WIDEN_FRACTION];
    }
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    return form_stream_seconds(bytes, device->hbm_bytes_per_s * fraction, params[FIXED_NS], params[RAMP_NS],
                               params[HALF_BYTES]);
}

const LawForm law_form_copy = {
    .n_params = 6,
    .params = {{"fixed_ns", 1500.0, 500.0, 10000.0},
               {"bandwidth_fraction", 0.89, 0.1, 0.95},
               {"fill_fraction", 0.70, 0.1, 0.95},
               {"widen_fraction", 0.43, 0.1, 0.95},
               {"ramp_ns", 3000.0, 10.0, 50000.0},
               {"half_bytes", 1e7, 1e6, 2e8}},
    .seconds = copy_seconds,
};
