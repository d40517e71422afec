#include "hw/timing.h"

#include <math.h>

#include "hw/law.h"
#include "hw/laws/form.h"

/* Tensor share of a training step. GEMM in profiled steps ran at 0.79 to 0.90 of the burst rate, which this share gives. */
#define STEP_TENSOR_SHARE 0.7

static SimTime at_least_one_ns(double seconds)
{
    return MAX((SimTime)1, quantity_ns(seconds));
}

static double work_seconds(const Device *device, const Work *work, double clock_frac)
{
    LawKind law = law_of_work(work->law);
    return law_form(law)->seconds(device, device->laws->fits[law].params, work, clock_frac);
}

SimTime timing_work_at_clock_ns(const Device *device, const Work *work, double clock_frac, Evidence *ret_evidence)
{
    g_assert(clock_frac > 0.0);
    if (ret_evidence != NULL) {
        *ret_evidence = law_evidence(&device->laws->fits[law_of_work(work->law)], law_size(work));
    }
    return at_least_one_ns(work_seconds(device, work, clock_frac));
}

SimTime timing_work_ns(const Device *device, const Work *work, TimingRegime regime, Evidence *ret_evidence)
{
    static const double shares[] = {
        [TIMING_BURST] = 0.0, [TIMING_SUSTAINED] = 1.0, [TIMING_STEP] = STEP_TENSOR_SHARE};
    return timing_work_at_clock_ns(device, work, timing_clock_frac(device, shares[regime]), ret_evidence);
}

double timing_power_share(const Device *device, const Work *work)
{
    return law_power_share(device, device->laws, work);
}

double timing_clock_frac(const Device *device, double tensor_share)
{
    return law_clock_frac(device->laws, tensor_share);
}

gboolean timing_supports(const Device *device, Dtype dtype)
{
    g_assert(dtype < N_DTYPES);
    return device->peak_flops_per_s[dtype] > 0.0;
}

SimTime timing_host_copy_ns(const Device *device, int64_t bytes, Evidence *ret_evidence)
{
    const LawFit *fit = &device->laws->fits[LAW_host_link];
    if (ret_evidence != NULL) {
        *ret_evidence = law_evidence(fit, (double)bytes);
    }
    return at_least_one_ns(law_link_seconds(fit, device->host_link_bytes_per_s, (double)bytes));
}
