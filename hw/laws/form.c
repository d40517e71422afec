#include "hw/laws/form.h"

#include <math.h>

double form_overlap(double a, double b, double p)
{
    double larger = fmax(a, b), smaller = fmin(a, b);
    if (larger <= 0.0) {
        return 0.0;
    }
    return larger * pow(1.0 + pow(smaller / larger, p), 1.0 / p);
}

double form_elements(const Work *work, double bytes)
{
    /* Streams say no format (0 is fp64); almost all of theirs are bf16, and a narrower guess only overestimates time. */
    double bits = work->dtype == DTYPE_FP64 ? 16.0 : (double)dtype_bits(work->dtype);
    return bytes * 8.0 / bits;
}
