#include "hw/timing.h"

#include <math.h>

#include "hw/law.h"
#include "hw/laws/form.h"

static SimTime at_least_one_ns(double seconds)
{
    return MAX((SimTime)1, quantity_ns(seconds));
}

SimTime timing_work_ns(const Device *device, const Work *work, TimingRegime regime, Evidence *ret_evidence)
{
    LawKind law = law_of_work(work->law);
    const LawFit *fit = &device->laws->fits[law];
    if (ret_evidence != NULL) {
        *ret_evidence = law_evidence(fit, law_size(work));
    }
    return at_least_one_ns(law_form(law)->seconds(device, fit->params, work, regime));
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
    const double *p = fit->params;
    return at_least_one_ns(
        form_stream_seconds((double)bytes, device->host_link_bytes_per_s * p[1], p[0], p[2], p[3]));
}
