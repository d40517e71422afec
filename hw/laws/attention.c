/*
 * Attention: causal or not is in the FLOPs; efficiency grows with the sequence (fewer tiles cut by the diagonal) and with
 * the number of independent heads.
 */
#include <math.h>

#include "hw/laws/form.h"

enum { FIXED_NS, EFFICIENCY, SEQ_HALF, MEMORY_FRACTION };

static double attention_seconds(const Device *device, const double *params, const Work *work, TimingRegime regime)
{
    (void)regime;
    double seq = work->n_groups > 0 ? (double)work->m / (double)work->n_groups : 1e9;
    double efficiency = params[EFFICIENCY] * seq / (seq + params[SEQ_HALF]);
    double compute = work->flops / (device->peak_flops_per_s[work->dtype] * efficiency);
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    return params[FIXED_NS] * 1e-9 + fmax(compute, bytes / (device->hbm_bytes_per_s * params[MEMORY_FRACTION]));
}

const LawForm law_form_attention = {
    .n_params = 4,
    .params = {{"fixed_ns", 5000.0, 500.0, 100000.0},
               {"efficiency", 0.58, 0.1, 1.0},
               {"seq_half", 500.0, 0.0, 20000.0},
               {"memory_fraction", 0.8, 0.1, 1.0}},
    .seconds = attention_seconds,
};
