/*
 * Dense matrix product C[m,n] of inner size k.
 *
 * The library picks, among its tiles, the one that ends first. Tiles of the output are dealt to the multiprocessors in
 * waves, and a last wave takes as long as a full one; when there are few tiles, the inner size is split and the parts
 * are summed. A tile costs its share of tensor work, at a rate that grows with its size (operands are read from shared
 * memory once per tile edge), plus a fixed time to fill and drain its pipeline: that is why short inner sizes run
 * slower. Memory traffic overlaps with all that imperfectly.
 */
#include <math.h>

#include "hw/laws/form.h"

enum {
    FIXED_NS,
    TENSOR_FRACTION,
    TILE_HALF,
    TILE_NS,
    MEMORY_FRACTION,
    RAMP_NS,
    HALF_BYTES,
    OVERLAP,
    NN_FACTOR,
    TN_FACTOR,
    TENSOR_POWER,
    MEMORY_POWER
};

/* Tiles seen in profiles of the library (names of the kernels hold them). */
static const double tiles[][2] = {{128, 256}, {256, 128}, {192, 192}, {320, 128}, {128, 320}, {256, 160},
                                  {160, 256}, {128, 192}, {192, 128}, {128, 128}, {64, 128},  {128, 64},
                                  {64, 64},   {64, 192},  {192, 64},  {64, 256},  {256, 64}};
static const double splits[] = {1, 2, 3, 4, 6, 8, 16};

/* Inner sizes advance in steps of 64. */
static const double k_step = 64.0;

static double tile_seconds(const Device *device, const double *params, const Work *work, const double *tile,
                           double rate)
{
    double m = (double)work->m, n = (double)work->n, k = (double)work->k;
    double sms = (double)device->n_sms;
    double intensity = tile[0] * tile[1] / (tile[0] + tile[1]);
    double tile_rate = rate / sms * intensity / (intensity + params[TILE_HALF]);
    double n_tiles = ceil(m / tile[0]) * ceil(n / tile[1]);
    double best = G_MAXDOUBLE;
    for (size_t i = 0; i < G_N_ELEMENTS(splits); i++) {
        double steps = ceil(ceil(k / k_step) / splits[i]);
        double waves = ceil(n_tiles * splits[i] / sms);
        double seconds = waves * (2.0 * tile[0] * tile[1] * steps * k_step / tile_rate + params[TILE_NS] * 1e-9);
        if (splits[i] > 1.0) { /* partial sums in fp32, written and read, by one more kernel */
            seconds += 1.5e-6 + 8.0 * m * n * splits[i] / device->hbm_bytes_per_s;
        }
        best = fmin(best, seconds);
        if (n_tiles >= 2.0 * sms) {
            break; /* enough tiles: nothing is split */
        }
    }
    return best;
}

static double gemm_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    double layout = work->law == WORK_GEMM_NN ? params[NN_FACTOR] : work->law == WORK_GEMM_TN ? params[TN_FACTOR] : 1.0;
    double rate = form_tensor_rate(device, work->dtype) * params[TENSOR_FRACTION] * layout * clock_frac;
    double compute = G_MAXDOUBLE;
    for (size_t i = 0; i < G_N_ELEMENTS(tiles); i++) {
        compute = fmin(compute, tile_seconds(device, params, work, tiles[i], rate));
    }
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    double memory = form_stream_seconds(bytes, device->hbm_bytes_per_s * params[MEMORY_FRACTION], 0.0, params[RAMP_NS],
                                        params[HALF_BYTES]);
    return params[FIXED_NS] * 1e-9 + form_overlap(compute, memory, params[OVERLAP]);
}

const LawForm law_form_gemm = {
    .n_params = 12,
    .params = {{"fixed_ns", 3500.0, 1000.0, 10000.0},
               {"tensor_fraction", 1.06, 0.7, 1.2}, /* above 1: the burst clock is above the datasheet's */
               {"tile_half", 12.0, 1.0, 40.0},
               {"tile_ns", 1800.0, 100.0, 5000.0},
               {"memory_fraction", 0.86, 0.5, 0.95},
               {"ramp_ns", 12000.0, 100.0, 40000.0},
               {"half_bytes", 9e7, 1e6, 5e8},
               {"overlap", 5.0, 1.5, 12.0},
               {"nn_factor", 0.97, 0.7, 1.2},
               {"tn_factor", 0.94, 0.7, 1.2},
               {"tensor_power", 1.76, 1.0, 3.0}, /* of the power limit, at the burst clock */
               {"memory_power", 0.5, 0.5, 0.5}}, /* of the power limit, when only memory is busy */
    .seconds = gemm_seconds,
};

double law_clock_frac(const Laws *laws, double tensor_share)
{
    const double *p = laws->fits[LAW_gemm].params;
    if (tensor_share <= 0.0) {
        return 1.0;
    }
    /* Power goes with the square of the clock; what memory time does not use is left for tensor time. */
    double left = (1.0 - (1.0 - tensor_share) * p[MEMORY_POWER]) / (tensor_share * p[TENSOR_POWER]);
    return fmin(1.0, sqrt(left));
}
