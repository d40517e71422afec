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
    /* Streams say no format (0 is fp64); almost all of theirs are bf16, and a narrower guess only overestimates time.
     */
    double bits = work->dtype == DTYPE_FP64 ? 16.0 : (double)dtype_bits(work->dtype);
    return bytes * 8.0 / bits;
}

double form_core_scale(const Device *device)
{
    /* The H200, on which "_ps" parameters are times. */
    static const double n_sms = 132.0, hbm_bytes_per_s = 4.8e12;
    double cores = n_sms / (double)device->n_sms;
    return cores > 1.0 ? fmin(cores, fmax(1.0, hbm_bytes_per_s / device->hbm_bytes_per_s)) : cores;
}

double form_tensor_rate(const Device *device, Dtype dtype)
{
    /* The H200 reaches 794.5 of 989 TFLOP/s by the same method (stas00/ml-engineering, maximum achievable matmul). */
    static const double reached = 794.5 / 989.0;
    double peak = device->peak_flops_per_s[dtype], bf16 = device->peak_flops_per_s[DTYPE_BF16];
    return device->matmul_flops_per_s > 0.0 ? peak * device->matmul_flops_per_s / bf16 / reached : peak;
}
