/*
 * Grouped matrix product: one product per group of rows, in one launch.
 *
 * Tiles of 128 x 256 of all groups form one list that is dealt to the multiprocessors in turn. Groups are padded to
 * whole tiles, which is what small and uneven groups cost. For the weight gradient the list has as many tiles for each
 * group, but a tile's inner size is its group's row count, so uneven groups end unevenly.
 */
#include <math.h>

#include "hw/laws/form.h"

enum { FIXED_NS, TENSOR_FRACTION, TILE_NS, MEMORY_FRACTION, RAMP_NS, HALF_BYTES, OVERLAP, WGRAD_FACTOR };

static const double tile_m = 128.0, tile_n = 256.0, k_step = 64.0;

/* Rows of a group; groups without counts share evenly, the remainder with the first ones. */
static double rows_of(const Work *work, int64_t total, int64_t group)
{
    if (work->group_rows != NULL) {
        return (double)work->group_rows[group];
    }
    return (double)(total / work->n_groups + (group < total % work->n_groups));
}

/* Deals n equal tiles in turn, going on where the last group ended. */
static void deal(double *busy, int n_sms, int64_t n, double seconds, int *next)
{
    double rounds = (double)(n / n_sms);
    int rest = (int)(n % n_sms);
    for (int i = 0; i < n_sms; i++) {
        busy[i] += rounds * seconds;
    }
    for (int i = 0; i < rest; i++) {
        busy[*next] += seconds;
        *next = (*next + 1) % n_sms;
    }
}

/* Time of the busiest multiprocessor; ret_weights gets the number of groups that have rows. */
static double makespan(const Device *device, const double *params, const Work *work, double rate, int64_t *ret_groups)
{
    gboolean wgrad = work->law == WORK_GROUPED_GEMM_WGRAD;
    int n_sms = (int)MIN(device->n_sms, 1024);
    double busy[1024] = {0};
    double tile_flops = 2.0 * tile_m * tile_n;
    double sm_rate = rate / (double)n_sms;
    int next = 0;
    *ret_groups = 0;
    for (int64_t i = 0; i < work->n_groups; i++) {
        double rows = rows_of(work, wgrad ? work->k : work->m, i);
        *ret_groups += rows > 0.0;
        double tiles_n = ceil((double)work->n / tile_n);
        double tiles = wgrad ? ceil((double)work->m / tile_m) * tiles_n : ceil(rows / tile_m) * tiles_n;
        double k = wgrad ? ceil(rows / k_step) * k_step : (double)work->k;
        double seconds = tile_flops * k / sm_rate * (wgrad ? params[WGRAD_FACTOR] : 1.0) + params[TILE_NS] * 1e-9;
        deal(busy, n_sms, (int64_t)tiles, seconds, &next);
    }
    double longest = 0.0;
    for (int i = 0; i < n_sms; i++) {
        longest = fmax(longest, busy[i]);
    }
    return longest;
}

static double grouped_gemm_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    double rate = form_tensor_rate(device, work->dtype) * params[TENSOR_FRACTION] * clock_frac;
    int64_t n_active;
    double compute = makespan(device, params, work, rate, &n_active);
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    if (work->law == WORK_GROUPED_GEMM && n_active < work->n_groups) { /* weights of empty groups are not read */
        double weight = (double)dtype_bytes(work->dtype, work->n * work->k);
        bytes -= fmin(bytes * 0.99, weight * (double)(work->n_groups - n_active));
    }
    double memory = form_stream_seconds(bytes, device->hbm_bytes_per_s * params[MEMORY_FRACTION], 0.0, params[RAMP_NS],
                                        params[HALF_BYTES]);
    return params[FIXED_NS] * 1e-9 + form_overlap(compute, memory, params[OVERLAP]);
}

const LawForm law_form_grouped_gemm = {
    .n_params = 8,
    .params = {{"fixed_ns", 6000.0, 2000.0, 30000.0},
               {"tensor_fraction", 0.92, 0.4, 1.2},
               {"tile_ns", 1800.0, 100.0, 8000.0},
               {"memory_fraction", 0.8, 0.4, 0.95},
               {"ramp_ns", 12000.0, 100.0, 60000.0},
               {"half_bytes", 9e7, 1e6, 5e8},
               {"overlap", 2.0, 1.2, 12.0},
               {"wgrad_factor", 1.05, 0.7, 1.5}},
    .seconds = grouped_gemm_seconds,
};
