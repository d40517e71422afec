/*
 * Grouped matrix product: one product per group of rows, tiles of all groups dealt out together.
 */
#include <math.h>

#include "hw/laws/form.h"

enum { FIXED_NS, EFFICIENCY, MEMORY_FRACTION, WGRAD_FACTOR };

/* Rows of a group; groups without counts share evenly. */
static double rows_of(const Work *work, double total, int64_t group)
{
    return work->group_rows != NULL ? (double)work->group_rows[group] : total / (double)work->n_groups;
}

static double forward_tiles(const Work *work)
{
    double tiles = 0.0;
    for (int64_t i = 0; i < work->n_groups; i++) {
        tiles += ceil(rows_of(work, (double)work->m, i) / 128.0) * ceil((double)work->n / 128.0);
    }
    return tiles;
}

static double grouped_gemm_seconds(const Device *device, const double *params, const Work *work, TimingRegime regime)
{
    gboolean wgrad = work->law == WORK_GROUPED_GEMM_WGRAD;
    double tile_flops = 128.0 * 128.0 * 2.0 * (double)work->k;
    double flops = work->flops;
    if (!wgrad) {
        flops = fmax(forward_tiles(work), (double)device->n_sms) * tile_flops;
    }
    double efficiency = params[EFFICIENCY] * (wgrad ? params[WGRAD_FACTOR] : 1.0) *
                        (regime == TIMING_SUSTAINED ? 0.95 : 1.0);
    double compute = flops / (device->peak_flops_per_s[work->dtype] * efficiency);
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    double memory = bytes / (device->hbm_bytes_per_s * params[MEMORY_FRACTION]);
    return params[FIXED_NS] * 1e-9 + fmax(compute, memory);
}

const LawForm law_form_grouped_gemm = {
    .n_params = 4,
    .params = {{"fixed_ns", 8000.0, 500.0, 50000.0},
               {"efficiency", 0.66, 0.1, 1.0},
               {"memory_fraction", 0.75, 0.1, 1.0},
               {"wgrad_factor", 0.97, 0.3, 1.5}},
    .seconds = grouped_gemm_seconds,
};
