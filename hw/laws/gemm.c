/*
 * Dense matrix product C[m,n] of inner size k.
 *
 * Output tiles of 128 x 256 are dealt to the multiprocessors in waves; a wave takes as long as a full one. Short inner
 * sizes pay for filling and draining the pipeline. Below that the memory roofline and a fixed time hold.
 */
#include <math.h>

#include "hw/laws/form.h"

enum { FIXED_NS, EFFICIENCY, MEMORY_FRACTION, K_HALF };

static double ceil_div(double a, double b)
{
    return ceil(a / b);
}

static double gemm_seconds(const Device *device, const double *params, const Work *work, TimingRegime regime)
{
    double m = (double)work->m, n = (double)work->n, k = (double)work->k;
    double tiles = fmin(ceil_div(m, 128.0) * ceil_div(n, 256.0), ceil_div(m, 256.0) * ceil_div(n, 128.0));
    double sms = (double)device->n_sms;
    double waves = tiles > sms ? ceil_div(tiles, sms) : fmax(tiles, sms / 2.0) / sms;
    double efficiency = params[EFFICIENCY] * k / (k + params[K_HALF]) * (regime == TIMING_SUSTAINED ? 0.93 : 1.0);
    double compute = waves * sms * 128.0 * 256.0 * 2.0 * k / (device->peak_flops_per_s[work->dtype] * efficiency);
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    double memory = bytes / (device->hbm_bytes_per_s * params[MEMORY_FRACTION]);
    return params[FIXED_NS] * 1e-9 + fmax(compute, memory);
}

const LawForm law_form_gemm = {
    .n_params = 4,
    .params = {{"fixed_ns", 4000.0, 500.0, 20000.0},
               {"efficiency", 0.78, 0.1, 1.0},
               {"memory_fraction", 0.8, 0.1, 1.0},
               {"k_half", 100.0, 0.0, 2000.0}},
    .seconds = gemm_seconds,
};
