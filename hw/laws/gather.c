/*
 * Gathers of rows: the cores' own work, a time per row (its index, its address) and one per element, against memory; the
 * two overlap imperfectly.
 *
 * A row that is wanted several times comes from memory once if the cache still has it. What is kept is the part of the
 * source that fits in a share of the cache: the rows written stream through the rest.
 */
#include <math.h>

#include "hw/laws/form.h"

enum { FRACTION, FIXED_NS, ROW_PS, ELEMENT_PS, CACHE_FRACTION, OVERLAP };

/* Bytes that come from memory. Work.k of Work.m rows differ; 0 = all of them do. */
static double bytes_missed(const Work *work, double cache_bytes)
{
    double read = (double)work->read_bytes;
    double once = work->k > 0 && work->k < work->m ? read * (double)work->k / (double)work->m : read;
    double held = once > cache_bytes ? cache_bytes / once : 1.0;
    return once + (read - once) * (1.0 - held);
}

static double gather_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    double written = (double)work->write_bytes;
    double memory = (bytes_missed(work, params[CACHE_FRACTION] * (double)device->l2_bytes) + written) /
                    (device->hbm_bytes_per_s * params[FRACTION]);
    double cores = (double)work->m * params[ROW_PS] + form_elements(work, written) * params[ELEMENT_PS];
    (void)clock_frac;
    return params[FIXED_NS] * 1e-9 + form_overlap(memory, cores * 1e-12 * form_core_scale(device), params[OVERLAP]);
}

const LawForm law_form_gather = {
    .n_params = 6,
    .params = {{"bandwidth_fraction", 0.9, 0.1, 0.95},
               {"fixed_ns", 3000.0, 500.0, 50000.0},
               {"row_ps", 300.0, 1.0, 5000.0},
               {"element_ps", 0.3, 0.01, 5.0},
               {"cache_fraction", 0.5, 0.05, 1.0},
               {"overlap", 2.0, 1.2, 10.0}},
    .seconds = gather_seconds,
};
