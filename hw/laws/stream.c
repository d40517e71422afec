/*
 * Streams: kernels bound by device memory; and links.
 *
 * Streams: t = fixed + bytes / (fraction x datasheet bandwidth) + ramp x bytes / (bytes + half). Large kernels run at a
 * constant share of the bandwidth; small ones pay for filling the memory pipeline.
 */
#include "hw/laws/form.h"

enum { FRACTION, FIXED_NS, RAMP_NS, HALF_BYTES };

double form_stream_seconds(double bytes, double bytes_per_s, double fixed_ns, double ramp_ns, double half_bytes)
{
    double ramp = bytes > 0.0 ? ramp_ns * bytes / (bytes + half_bytes) : 0.0;
    return (fixed_ns + ramp) * 1e-9 + bytes / bytes_per_s;
}

static double stream_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    (void)clock_frac;
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    return form_stream_seconds(bytes, device->hbm_bytes_per_s * params[FRACTION], params[FIXED_NS], params[RAMP_NS],
                               params[HALF_BYTES]);
}

const LawForm law_form_stream = {
    .n_params = 4,
    .params = {{"bandwidth_fraction", 0.5, 0.02, 0.95},
               {"fixed_ns", 1500.0, 500.0, 50000.0},
               {"ramp_ns", 3000.0, 10.0, 50000.0},
               {"half_bytes", 1e7, 1e6, 2e8}},
    .seconds = stream_seconds,
};

/*
 * Links: t = fixed + bytes (1 + ramp / (bytes + half)) / (fraction x datasheet bandwidth). The ramp is a size, not a time:
 * a link twice as fast comes up to speed in half the time.
 */
enum { RAMP_BYTES = RAMP_NS };

const LawForm law_form_link = {
    .n_params = 4,
    .params = {{"bandwidth_fraction", 0.75, 0.05, 1.0},
               {"fixed_ns", 8000.0, 2000.0, 60000.0},
               {"ramp_bytes", 2e7, 1e3, 1e9},
               {"half_bytes", 3e7, 1e5, 1e10}},
};

double law_link_seconds(const LawFit *fit, double link_bytes_per_s, double bytes)
{
    const double *p = fit->params;
    double ramp = bytes > 0.0 ? p[RAMP_BYTES] * bytes / (bytes + p[HALF_BYTES]) : 0.0;
    return p[FIXED_NS] * 1e-9 + (bytes + ramp) / (link_bytes_per_s * p[FRACTION]);
}

double law_link_fixed_seconds(const LawFit *fit)
{
    return fit->params[FIXED_NS] * 1e-9;
}
