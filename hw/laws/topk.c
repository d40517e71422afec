/*
 * Top-k of rows: radix selection reads the row once per digit (each pass a fixed time and a time per element), then
 * what was found is sorted.
 */
#include "hw/laws/form.h"

enum { FIXED_NS, ROW_PS, ELEMENT_PS };

static double topk_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    (void)clock_frac;
    double rows = (double)work->m;
    double elements = rows * (double)work->n;
    if (elements <= 0.0) {
        elements = (double)work->read_bytes / 4.0;
    }
    double picoseconds = rows * params[ROW_PS] + elements * params[ELEMENT_PS];
    return params[FIXED_NS] * 1e-9 + picoseconds * 1e-12 * form_core_scale(device);
}

const LawForm law_form_topk = {
    .n_params = 3,
    .params = {{"fixed_ns", 10000.0, 500.0, 50000.0},
               {"row_ps", 1500.0, 10.0, 50000.0},
               {"element_ps", 33.0, 1.0, 1000.0}},
    .seconds = topk_seconds,
};
