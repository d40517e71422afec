/*
 * Adding rows into rows that may collide: one atomic addition per element, whatever the width, the order and the number
 * of collisions (measured: 8.3 ps per element from 512 to 7168 wide, sorted or not, 1 to 16 rows per destination).
 */
#include "hw/laws/form.h"

enum { FIXED_NS, ELEMENT_PS };

static double scatter_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    (void)clock_frac;
    double elements = (double)work->m * (double)work->n;
    if (elements <= 0.0) { /* shape not told: rows are read once, their destinations read and written */
        elements = form_elements(work, ((double)work->read_bytes + (double)work->write_bytes) / 3.0);
    }
    return params[FIXED_NS] * 1e-9 + elements * params[ELEMENT_PS] * 1e-12 * form_core_scale(device);
}

const LawForm law_form_scatter = {
    .n_params = 2,
    .params = {{"fixed_ns", 4000.0, 500.0, 50000.0}, {"element_ps", 8.3, 1.0, 50.0}},
    .seconds = scatter_seconds,
};
