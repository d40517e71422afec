/*
 * Row-wise kernels (norms and their gradients): memory, or a fixed time per row, which overlap imperfectly.
 *
 * One block works on a row, or one thread walks down a column: narrow tensors of many rows are bound by that, not by
 * their bytes. The column sums of very narrow tensors are split over blocks instead and do not wait for rows.
 */
#include <math.h>

#include "hw/laws/form.h"

enum { FRACTION, FIXED_NS, ROW_PS, OVERLAP };

/* Columns up to which column sums are split (profiles: two kernels at 128 columns, one from 512 on). */
static const int64_t split_columns = 256;

static double rowwise_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    (void)clock_frac;
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    double memory = bytes / (device->hbm_bytes_per_s * params[FRACTION]);
    gboolean split = work->law == WORK_NORM_WEIGHT_GRAD && work->n > 0 && work->n <= split_columns;
    double rows = split ? 0.0 : (double)work->m * params[ROW_PS] * 1e-12;
    if (work->law == WORK_NORM_WEIGHT_GRAD) { /* one block per 32 columns walks down all rows */
        rows *= ceil(ceil((double)work->n / 32.0) / (double)device->n_sms);
    }
    return params[FIXED_NS] * 1e-9 + form_overlap(memory, rows, params[OVERLAP]);
}

const LawForm law_form_rowwise = {
    .n_params = 4,
    .params = {{"bandwidth_fraction", 0.7, 0.1, 0.95},
               {"fixed_ns", 2000.0, 500.0, 20000.0},
               {"row_ps", 700.0, 50.0, 20000.0},
               {"overlap", 2.5, 1.2, 10.0}},
    .seconds = rowwise_seconds,
};
