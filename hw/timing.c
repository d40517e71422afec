#include "hw/timing.h"

#include <math.h>

#include "hw/law.h"
#include "hw/laws/form.h"

/* Power share of a training step of the usual mix: 0.34 to 0.56 in profiled steps. */
static const double usual_step_share = 0.5;

/*
 * Lag of the clock. With 2 ms the products of profiled steps come within 4 % (0.90 of the burst rate at 0.7 ms a
 * product, 0.82 at 1.3 ms, 1.00 at 0.2 ms in a step that waits for the host).
 */
static const double clock_lag_seconds = 2e-3;

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
        if (work->dtype == DTYPE_FP8 && work_law_group(work->law) == WORK_GROUP_COMPUTE && *ret_evidence < EVIDENCE_DATASHEET) {
            *ret_evidence = EVIDENCE_DATASHEET; /* laws were fitted to bf16: only the peak is another */
        }
    }
    return at_least_one_ns(work_seconds(device, work, clock_frac));
}

SimTime timing_work_ns(const Device *device, const Work *work, TimingRegime regime, Evidence *ret_evidence)
{
    if (regime == TIMING_STEP) {
        return timing_in_step_ns(device, work, usual_step_share, ret_evidence);
    }
    double clock_frac = regime == TIMING_BURST ? 1.0 : timing_clock_frac(device, 1.0);
    return timing_work_at_clock_ns(device, work, clock_frac, ret_evidence);
}

void timing_in_step_curve(const Device *device, const Work *work, const double *step_shares, int n_shares,
                          SimTime *ret_ns, double *ret_power_share, Evidence *ret_evidence)
{
    double power_share = 0.0;
    SimTime burst_ns = timing_work_at_clock_ns(device, work, 1.0, ret_evidence);
    if (work_law_group(work->law) == WORK_GROUP_COMPUTE) {
        power_share = timing_power_share(device, work);
    }
    if (ret_power_share != NULL) {
        *ret_power_share = power_share;
    }
    double seconds = (double)burst_ns * 1e-9;
    double own = power_share * seconds / (seconds + clock_lag_seconds);
    for (int i = 0; i < n_shares; i++) {
        double share = step_shares[i] + (1.0 - step_shares[i]) * own;
        ret_ns[i] = work_law_group(work->law) == WORK_GROUP_STREAM
                        ? burst_ns
                        : timing_work_at_clock_ns(device, work, timing_clock_frac(device, share), NULL);
    }
}

SimTime timing_in_step_ns(const Device *device, const Work *work, double step_share, Evidence *ret_evidence)
{
    SimTime ns;
    timing_in_step_curve(device, work, &step_share, 1, &ns, NULL, ret_evidence);
    return ns;
}

int timing_host_calls(const Work *work)
{
    /* Short sequences of hw/calibration/h200/op_kda.csv and op_attnres.csv, over the time of an eager operator. */
    switch (work->law) {
    case WORK_KDA_FORWARD:
        return 27;
    case WORK_KDA_BACKWARD:
        return 62;
    case WORK_ATTNRES_FORWARD:
        return 9;
    case WORK_ATTNRES_BACKWARD:
        return 18;
    default:
        return 1;
    }
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
