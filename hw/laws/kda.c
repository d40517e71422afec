/*
 * Chunked linear attention and other scans: tensor work inside chunks of 64 and passes over states in memory, each by
 * several kernels; both grow with tokens and heads, so that a rate and a fixed time say it. The rate is of the
 * order-of-magnitude count of FLOPs of a chunked kernel: per token and head four products inside the chunk and four
 * with the state.
 */
#include <math.h>

#include "hw/laws/form.h"

enum { TENSOR_FRACTION, FIXED_NS, MEMORY_FRACTION };

static const double chunk = 64.0;

static double kda_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    (void)clock_frac; /* steps show the times of the table: latency and memory, not the clock */
    double k = (double)work->k;
    double flops = (double)work->m * (double)work->n * (8.0 * chunk * k + 8.0 * k * k);
    if (flops <= 0.0) {
        flops = work->flops;
    }
    double compute = flops / (form_tensor_rate(device, work->dtype) * params[TENSOR_FRACTION]);
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    return params[FIXED_NS] * 1e-9 + fmax(compute, bytes / (device->hbm_bytes_per_s * params[MEMORY_FRACTION]));
}

const LawForm law_form_kda = {
    .n_params = 3,
    .params = {{"tensor_fraction", 0.015, 0.001, 1.0},
               {"fixed_ns", 50000.0, 5000.0, 120000.0},
               {"memory_fraction", 0.5, 0.5, 0.5}},
    .seconds = kda_seconds,
};
